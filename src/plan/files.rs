//! Files that are either there and whole, or not there; and whether two names are one file.
//!
//! Whatever the program writes under a name that may be taken is written beside it first, as a [`Draft`], and gets the
//! name when it is whole. So a name that is a link to something else, or one more name of the file that is being read,
//! is replaced and never written through.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

/// How many writers of one place there may be at a time.
const WRITERS: usize = 64;

/// A file on its way to its place: written beside it, removed again unless [`Draft::place`] is reached.
///
/// Its name is the same each time, so that a process that is killed leaves one file and not a pile of them; a lock on
/// it, which ends with the process, tells a leftover from the draft of another writer, who is given the next name.
#[derive(Debug)]
pub struct Draft {
    file: BufWriter<File>,
    path: PathBuf,
    placed: bool,
}

impl Draft {
    /// An empty file beside `place`: `.best.toml.partial` for `best.toml`.
    ///
    /// # Errors
    /// If the folder can't be written to, or `place` is something else than a file, as a folder or `/dev/null` is.
    pub fn beside(place: &Path) -> Result<Draft> {
        let other = fs::metadata(place).is_ok_and(|found| !found.is_file());
        ensure!(!other, "{} is no regular file: name another", place.display());
        let (file, path) = open(place).with_context(|| format!("can't write {}", place.display()))?;
        Ok(Draft { file: BufWriter::new(file), path, placed: false })
    }

    /// Where it is so far, for what writes files by name.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the file its name, in the folder that it is in, and makes file and name durable. A link of that name is
    /// replaced; what it leads to stays as it is.
    ///
    /// # Errors
    /// If the disk is full, or the name can't be taken.
    pub fn place(mut self, place: &Path) -> Result<()> {
        let whole = (|| -> io::Result<()> {
            self.file.flush()?;
            self.file.get_ref().sync_all()?;
            fs::rename(&self.path, place)
        })();
        whole.with_context(|| format!("can't write {}", place.display()))?;
        self.placed = true;
        sync_folder(place)
    }
}

impl Write for Draft {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for Draft {
    /// What is half-written is of no use.
    fn drop(&mut self) {
        if !self.placed {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// The name of a draft. It holds the whole name of its place: `vocab.json` and `vocab.txt` must not meet.
pub fn draft_name(place: &Path) -> PathBuf {
    numbered(place, 0)
}

fn numbered(place: &Path, number: usize) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(place.file_name().unwrap_or_default());
    name.push(if number == 0 { ".partial".to_string() } else { format!(".{number}.partial") });
    place.with_file_name(name)
}

/// The first draft of a place that is nobody else's.
fn open(place: &Path) -> io::Result<(File, PathBuf)> {
    for path in (0..WRITERS).map(|number| numbered(place, number)) {
        // A link, or one more name of some other file, is not ours: emptying it would empty that.
        let foreign = fs::symlink_metadata(&path).is_ok_and(|found| !found.is_file() || found.nlink() != 1);
        if foreign {
            continue;
        }
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).custom_flags(libc::O_NOFOLLOW);
        let file = options.open(&path)?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => continue,
            // A file system without locks: as good as it gets there.
            Ok(()) | Err(TryLockError::Error(_)) => {}
        }
        // Between opening and locking, another writer may have given this very file its name.
        let (opened, named) = (file.metadata()?, fs::symlink_metadata(&path));
        if named.is_ok_and(|named| identity(&named) == identity(&opened)) {
            file.set_len(0)?;
            return Ok((file, path));
        }
    }
    Err(io::Error::other(format!("{WRITERS} others are writing it, or left {}", draft_name(place).display())))
}

fn identity(metadata: &fs::Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// Whether two names lead to one file or folder, by whatever spelling, symbolic or hard link. What isn't there is
/// nobody else.
pub fn is_same(one: &Path, other: &Path) -> bool {
    match (fs::metadata(one), fs::metadata(other)) {
        (Ok(one), Ok(other)) => identity(&one) == identity(&other),
        _ => false,
    }
}

/// Writes a file so that a crash or a full disk at any moment leaves either the old one or the new one: written
/// beside, synced, renamed, and the folder synced.
///
/// # Errors
/// If the folder can't be written to.
pub fn write_whole(path: &Path, text: &str) -> Result<()> {
    let mut draft = Draft::beside(path)?;
    draft.write_all(text.as_bytes()).with_context(|| format!("can't write {}", path.display()))?;
    draft.place(path)
}

/// Has `write` write a file by name, and gives it its place when it is whole.
///
/// # Errors
/// Those of `write`; or if the folder can't be written to.
pub fn replace(place: &Path, write: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let draft = Draft::beside(place)?;
    write(draft.path()).with_context(|| format!("can't write {}", place.display()))?;
    draft.place(place)
}

/// Copies a file, whole or not at all. Where both names are the same file, it stays as it is.
///
/// # Errors
/// If it can't be read, or the folder can't be written to.
pub fn copy_whole(from: &Path, to: &Path) -> Result<()> {
    if is_same(from, to) {
        return Ok(());
    }
    let mut source = File::open(from).with_context(|| format!("can't read {}", from.display()))?;
    let mut draft = Draft::beside(to)?;
    io::copy(&mut source, &mut draft).with_context(|| format!("can't copy {} to {}", from.display(), to.display()))?;
    draft.place(to)
}

/// Gives a whole file one more name, in the place of whatever has it: no copy, where the file system has links.
///
/// # Errors
/// If it is not there, or the folder can't be written to.
pub fn link_whole(from: &Path, to: &Path) -> Result<()> {
    if is_same(from, to) {
        return Ok(());
    }
    replace(to, |beside| {
        fs::remove_file(beside)?;
        if fs::hard_link(from, beside).is_err() {
            fs::copy(from, beside)?;
            File::open(beside)?.sync_all()?;
        }
        Ok(())
    })
}

/// Makes the name of a new or renamed file durable.
///
/// # Errors
/// If its folder can't be opened or synced.
pub fn sync_folder(path: &Path) -> Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder).and_then(|folder| folder.sync_all()).with_context(|| format!("syncing {}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<String> = entries.map(|name| name.to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn replaces_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("best.toml");
        write_whole(&path, "one").unwrap();
        write_whole(&path, "two").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "two");
        let failed = replace(&path, |beside| {
            fs::write(beside, "thr")?;
            anyhow::bail!("the disk is full")
        });
        assert!(format!("{:#}", failed.unwrap_err()).contains("best.toml: the disk is full"));
        assert_eq!(fs::read_to_string(&path).unwrap(), "two");
        assert_eq!(names(folder.path()), ["best.toml"]);
        let missing = format!("{:#}", write_whole(&folder.path().join("none/best.toml"), "x").unwrap_err());
        assert!(missing.contains("none/best.toml"), "{missing}");
        let taken = format!("{:#}", write_whole(folder.path(), "x").unwrap_err());
        assert!(taken.contains("is no regular file"), "{taken}");
        assert!(write_whole(Path::new("/dev/null"), "x").is_err());
    }

    #[test]
    fn a_copy_onto_itself_under_any_name_loses_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("a"), "content").unwrap();
        fs::create_dir(at("sub")).unwrap();
        symlink(at("a"), at("symbolic")).unwrap();
        fs::hard_link(at("a"), at("hard")).unwrap();
        for other in ["a", "./a", "sub/../a", "symbolic", "hard"].map(at) {
            assert!(is_same(&at("a"), &other), "{}", other.display());
            copy_whole(&at("a"), &other).unwrap();
            copy_whole(&other, &at("a")).unwrap();
            assert_eq!(fs::read_to_string(at("a")).unwrap(), "content", "{}", other.display());
        }
        assert!(!is_same(&at("a"), &at("b")) && !is_same(&at("b"), &at("b")));
    }

    #[test]
    fn one_more_name_takes_the_place_of_another_file() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        ["best", "model"].iter().for_each(|name| fs::write(at(name), name).unwrap());
        fs::hard_link(at("model"), at("older")).unwrap();
        for _ in 0..2 {
            link_whole(&at("best"), &at("model")).unwrap();
            assert_eq!(fs::read_to_string(at("model")).unwrap(), "best");
            assert_eq!(names(folder.path()), ["best", "model", "older"]);
        }
        fs::remove_file(at("best")).unwrap();
        assert_eq!(fs::read_to_string(at("model")).unwrap(), "best");
        assert_eq!(fs::read_to_string(at("older")).unwrap(), "model");
        assert!(link_whole(&at("none"), &at("model")).is_err());
        assert_eq!(names(folder.path()), ["model", "older"]);
        assert_eq!(fs::read_to_string(at("model")).unwrap(), "best");
    }

    #[test]
    fn a_link_in_the_place_is_replaced_and_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["theirs", "mine"] {
            fs::write(at(name), name).unwrap();
        }
        symlink(at("theirs"), at("symbolic")).unwrap();
        fs::hard_link(at("theirs"), at("hard")).unwrap();
        for link in ["symbolic", "hard"].map(at) {
            copy_whole(&at("mine"), &link).unwrap();
            assert_eq!(fs::read_to_string(&link).unwrap(), "mine");
            assert_eq!(fs::read_to_string(at("theirs")).unwrap(), "theirs");
        }
        // The same for the name that a draft would have.
        symlink(at("theirs"), draft_name(&at("new"))).unwrap();
        fs::hard_link(at("theirs"), numbered(&at("new"), 1)).unwrap();
        write_whole(&at("new"), "new").unwrap();
        assert_eq!(fs::read_to_string(at("theirs")).unwrap(), "theirs");
        assert_eq!(fs::read_to_string(at("new")).unwrap(), "new");
    }

    #[test]
    fn drafts_of_several_writers_never_meet_and_a_leftover_is_used_again() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("vocab.json");
        fs::write(draft_name(&place), "left by a process that was killed").unwrap();
        let mut one = Draft::beside(&place).unwrap();
        let mut two = Draft::beside(&place).unwrap();
        let other = Draft::beside(&folder.path().join("vocab.txt")).unwrap();
        assert_eq!(one.path(), draft_name(&place));
        assert!(two.path() != one.path() && other.path() != one.path());
        one.write_all(b"one").unwrap();
        two.write_all(b"two").unwrap();
        one.place(&place).unwrap();
        assert_eq!(fs::read_to_string(&place).unwrap(), "one");
        two.place(&place).unwrap();
        assert_eq!(fs::read_to_string(&place).unwrap(), "two");
        drop(other);
        assert_eq!(names(folder.path()), ["vocab.json"]);
    }

    #[test]
    fn many_at_once_leave_one_whole_file() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("answer");
        std::thread::scope(|scope| {
            for writer in 0..8 {
                let place = &place;
                scope.spawn(move || {
                    for _ in 0..50 {
                        write_whole(place, &format!("{writer}").repeat(1000)).unwrap();
                    }
                });
            }
        });
        let text = fs::read_to_string(&place).unwrap();
        assert!(text.len() == 1000 && text.chars().all(|c| text.starts_with(c)), "{text}");
        assert_eq!(names(folder.path()), ["answer"]);
    }
}
