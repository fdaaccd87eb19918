//! What the files of a model hold, as short texts to tell two models in one place apart.
//!
//! CRC-32C and not a cryptographic hash: it runs at the speed of the disk, so that gigabytes of weights delay a search
//! by no more than their first reading, which the workers' own then finds in the system's cache. It tells apart by
//! accident, not by intent.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result};

use super::checkpoint::Checkpoint;
use super::config::ModelConfig;
use super::weights;

/// Bytes read at a time.
const PIECE: usize = 1 << 20;

/// Digests of a model's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// Of `config.json`.
    pub config: String,
    /// Of the weights, all shards one after another.
    pub weights: String,
}

impl Content {
    /// Reads the files of a Hugging Face folder, in constant memory.
    ///
    /// # Errors
    /// If there are no weights, they are not those of `config`, one of the files is damaged, or can't be read.
    pub fn of(folder: &Path, config: &ModelConfig) -> Result<Self> {
        let mut checkpoint = Checkpoint::open(folder)?;
        weights::check(config, &mut checkpoint).with_context(|| format!("the weights in {}", folder.display()))?;
        Ok(Content { config: digest([folder.join("config.json").as_path()])?, weights: digest(checkpoint.paths())? })
    }
}

/// Length and checksum of files read one after another: `90868376 bytes, crc32c 0a1b2c3d`.
fn digest<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Result<String> {
    let (mut length, mut sum) = (0u64, 0u32);
    let mut piece = vec![0u8; PIECE];
    for path in paths {
        let reading = || format!("can't read {}", path.display());
        let mut file = File::open(path).with_context(reading)?;
        loop {
            let count = file.read(&mut piece).with_context(reading)?;
            if count == 0 {
                break;
            }
            length += count as u64;
            sum = crc32c::crc32c_append(sum, &piece[..count]);
        }
    }
    Ok(format!("{length} bytes, crc32c {sum:08x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_the_published_checksum_of_all_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let (a, b) = (folder.path().join("a"), folder.path().join("b"));
        std::fs::write(&a, "1234").unwrap();
        std::fs::write(&b, "56789").unwrap();
        // The check value of CRC-32C for "123456789".
        assert_eq!(digest([a.as_path(), b.as_path()]).unwrap(), "9 bytes, crc32c e3069283");
        let long = vec![7u8; 2 * PIECE + 3];
        std::fs::write(&a, &long).unwrap();
        let expected = format!("{} bytes, crc32c {:08x}", long.len(), crc32c::crc32c(&long));
        assert_eq!(digest([a.as_path()]).unwrap(), expected);
        let missing = format!("{:#}", digest([folder.path().join("none").as_path()]).unwrap_err());
        assert!(missing.contains("none"), "{missing}");
    }

    #[test]
    fn one_bit_of_a_weight_makes_another_model() {
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/variants/sharded");
        let folder = tempfile::tempdir().unwrap();
        for entry in std::fs::read_dir(&fixture).unwrap().map(Result::unwrap) {
            std::fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
        }
        let config = ModelConfig::from_file(&fixture.join("config.json")).unwrap();
        let before = Content::of(folder.path(), &config).unwrap();
        assert_eq!(before, Content::of(&fixture, &config).unwrap());
        let shard = Checkpoint::open(folder.path()).unwrap().paths().last().unwrap().to_path_buf();
        let mut bytes = std::fs::read(&shard).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&shard, bytes).unwrap();
        let after = Content::of(folder.path(), &config).unwrap();
        assert_eq!(after.config, before.config);
        assert_ne!(after.weights, before.weights);
    }
}
