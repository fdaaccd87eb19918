//! Reading `model.safetensors`, whole or in shards, one tensor at a time.
//!
//! Tensors are read by offset from an ordinary file: a memory map would need `unsafe`, and dies by signal when
//! another program truncates the file.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use half::{bf16, f16};
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};

/// Longest header that is believed: the format's own limit.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// A tensor in 32 bits.
#[derive(Debug)]
pub struct Loaded {
    /// Row-major extents.
    pub shape: Vec<usize>,
    /// Row-major values.
    pub values: Vec<f32>,
}

/// One safetensors file.
#[derive(Debug)]
struct Shard {
    path: PathBuf,
    file: File,
    data_start: u64,
    metadata: Metadata,
}

/// All the tensors of a model folder, by name.
#[derive(Debug)]
pub struct Checkpoint {
    shards: Vec<Shard>,
    /// Tensor name → shard that holds it.
    index: BTreeMap<String, usize>,
}

impl Checkpoint {
    /// Opens the weights of a Hugging Face folder: `model.safetensors`, or the shards that
    /// `model.safetensors.index.json` names.
    ///
    /// # Errors
    /// If there are none, a shard is missing, or a header contradicts its file.
    pub fn open(folder: &Path) -> Result<Self> {
        let single = folder.join("model.safetensors");
        let index = folder.join("model.safetensors.index.json");
        if single.exists() {
            return Self::from_files(vec![single]);
        }
        if index.exists() {
            let files = shard_files(&index)?;
            return Self::from_files(files);
        }
        if folder.join("pytorch_model.bin").exists() {
            bail!(
                "{} has only pytorch_model.bin, a pickle that can run code when it is read. Convert it once with \
                 transformers: AutoModel.from_pretrained(\"{0}\").save_pretrained(\"{0}\", safe_serialization=True)",
                folder.display()
            );
        }
        bail!("{} holds no model.safetensors and no model.safetensors.index.json", folder.display())
    }

    /// Opens a single safetensors file.
    ///
    /// # Errors
    /// If it is not a whole one.
    pub fn file(path: &Path) -> Result<Self> {
        Self::from_files(vec![path.to_path_buf()])
    }

    /// What the (first) file's header says under a name of its own.
    pub fn note(&self, key: &str) -> Option<&str> {
        self.shards.first()?.metadata.metadata().as_ref()?.get(key).map(String::as_str)
    }

    /// The files that hold the weights, in the order in which they were opened.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.shards.iter().map(|shard| shard.path.as_path())
    }

    fn from_files(files: Vec<PathBuf>) -> Result<Self> {
        let mut shards = Vec::new();
        let mut index = BTreeMap::new();
        for path in files {
            let shard = Shard::open(path)?;
            for name in shard.metadata.offset_keys() {
                if let Some(earlier) = index.insert(name.clone(), shards.len()) {
                    let first: &Shard = &shards[earlier];
                    bail!("tensor {name} is both in {} and in {}", first.path.display(), shard.path.display());
                }
            }
            shards.push(shard);
        }
        Ok(Checkpoint { shards, index })
    }

    /// Names of all tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.index.keys().map(String::as_str)
    }

    /// The shape of a tensor, if it is there.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        let shard = &self.shards[*self.index.get(name)?];
        shard.metadata.info(name).map(|info| info.shape.as_slice())
    }

    /// Reads one tensor and widens it to 32 bits.
    ///
    /// # Errors
    /// If it is not there, is no floating-point tensor, holds NaN or infinity, or its file can't be read.
    pub fn read(&mut self, name: &str) -> Result<Loaded> {
        let number = *self.index.get(name).with_context(|| format!("there is no tensor {name}"))?;
        let shard = &mut self.shards[number];
        let info = shard.metadata.info(name).cloned().with_context(|| format!("there is no tensor {name}"))?;
        let values =
            shard.values(&info).with_context(|| format!("can't read tensor {name} from {}", shard.path.display()))?;
        ensure!(
            values.iter().all(|v| v.is_finite()),
            "tensor {name} of {} holds NaN or infinity: training from it can't succeed",
            shard.path.display()
        );
        Ok(Loaded { shape: info.shape, values })
    }
}

impl Shard {
    fn open(path: PathBuf) -> Result<Self> {
        let wrong = |what: &str| format!("{} is not a whole safetensors file: {what}", path.display());
        let mut file = File::open(&path).with_context(|| format!("can't open {}", path.display()))?;
        let length = file.metadata().with_context(|| format!("can't read {}", path.display()))?.len();
        let mut prefix = [0u8; 8];
        file.read_exact(&mut prefix).with_context(|| wrong("it is shorter than 8 bytes"))?;
        let header_bytes = u64::from_le_bytes(prefix);
        ensure!(
            header_bytes <= MAX_HEADER_BYTES && header_bytes + 8 <= length,
            wrong("its header is longer than the file")
        );
        let mut header = vec![0u8; header_bytes as usize];
        file.read_exact(&mut header).with_context(|| wrong("its header can't be read"))?;
        let metadata: Metadata = serde_json::from_slice(&header).with_context(|| wrong("its header is damaged"))?;
        let data_start = 8 + header_bytes;
        ensure!(
            data_start.checked_add(metadata.data_len() as u64) == Some(length),
            wrong("its length is not what its header says; was the download cut off?")
        );
        Ok(Shard { path, file, data_start, metadata })
    }

    /// Widened piece by piece: the bytes of a large table beside its values could be more than a cap leaves.
    fn values(&mut self, info: &TensorInfo) -> Result<Vec<f32>> {
        const PIECE: usize = 1 << 16;
        let (start, end) = info.data_offsets;
        let count: usize = info.shape.iter().product();
        self.file.seek(SeekFrom::Start(self.data_start + start as u64))?;
        let mut values = Vec::with_capacity(count);
        let mut piece = vec![0u8; PIECE.min(end - start)];
        let mut left = end - start;
        while left > 0 {
            let bytes = &mut piece[..left.min(PIECE)];
            self.file.read_exact(bytes)?;
            widen(bytes, info.dtype, &mut values)?;
            left -= bytes.len();
        }
        ensure!(values.len() == count, "it has {} values where its shape needs {count}", values.len());
        Ok(values)
    }
}

/// The shard files that an index names, each once.
fn shard_files(index: &Path) -> Result<Vec<PathBuf>> {
    let folder = index.parent().unwrap_or(Path::new("."));
    shard_names(index)?
        .into_iter()
        .map(|name| {
            let path = folder.join(&name);
            let link = path.symlink_metadata().is_ok_and(|m| m.is_symlink());
            if link {
                // Hugging Face's cache links snapshots to ../../blobs: a link is fine as long as it ends in a regular file.
                ensure!(path.is_file(), "{} is a link that leads nowhere", path.display());
            }
            ensure!(path.exists(), "{} names {}, which is not there", index.display(), path.display());
            Ok(path)
        })
        .collect()
}

/// The names of the shards in an index, each once, sorted. Whether they are there is another question.
///
/// # Errors
/// If the index can't be read, or a name is not that of a file beside it.
pub fn shard_names(index: &Path) -> Result<Vec<String>> {
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: HashMap<String, String>,
    }
    let text = std::fs::read_to_string(index).with_context(|| format!("can't read {}", index.display()))?;
    let parsed: Index =
        serde_json::from_str(&text).with_context(|| format!("{} is no shard index", index.display()))?;
    let mut names: Vec<String> = parsed.weight_map.into_values().collect();
    names.sort();
    names.dedup();
    for name in &names {
        // A file is data: no name in it may lead out of its folder.
        let plain = Path::new(name).file_name().is_some_and(|f| f == name.as_str());
        ensure!(plain, "{} names the shard '{name}': only plain file names are accepted", index.display());
    }
    Ok(names)
}

/// Appends little-endian values of a floating-point type, in 32 bits.
fn widen(bytes: &[u8], dtype: Dtype, to: &mut Vec<f32>) -> Result<()> {
    let pairs = || bytes.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]]));
    match dtype {
        Dtype::F32 => to.extend(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))),
        Dtype::F16 => to.extend(pairs().map(|bits| f16::from_bits(bits).to_f32())),
        Dtype::BF16 => to.extend(pairs().map(|bits| bf16::from_bits(bits).to_f32())),
        other => bail!("its type is {other:?}: weights of type F32, F16 or BF16 are needed"),
    }
    Ok(())
}
