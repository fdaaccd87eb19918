//! One file from a hub into the cache: goes on after a break, and counts only when size and hash are right.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};
use ureq::http::HeaderMap;

use super::Watch;
use super::cache::Store;
use super::failure::Failure;
use super::name::Name;
use super::web::{Patience, Remote, Web};
use crate::plan::ByteSize;

/// Bytes that are read at a time.
const CHUNK: usize = 1 << 16;

/// How often a person is told.
const TELL_EVERY: Duration = Duration::from_millis(200);

/// Bytes that have arrived, for a person to watch.
pub(super) struct Meter<'a> {
    watch: &'a mut dyn Watch,
    /// Bytes of all files that are to come.
    total: u64,
    /// Bytes of the files that are done.
    done: u64,
    /// Bytes that came over the wire since the start.
    received: u64,
    started: Instant,
    told: Instant,
}

impl<'a> Meter<'a> {
    pub(super) fn new(watch: &'a mut dyn Watch, total: u64) -> Self {
        let now = Instant::now();
        Meter { watch, total, done: 0, received: 0, started: now, told: now }
    }

    /// In one line: what came, and how long it took.
    pub(super) fn finish(self) {
        let seconds = self.started.elapsed().as_secs_f64();
        // Nothing is said where all was there, or another program was quicker.
        if self.received > 0 {
            self.watch.line(&format!("downloaded {} in {seconds:.1} s", ByteSize(self.received)));
        }
    }

    fn tell(&mut self, file: &str, here: u64) {
        if self.told.elapsed() < TELL_EVERY {
            return;
        }
        self.told = Instant::now();
        let there = self.done + here;
        let share = there as f64 / self.total.max(1) as f64 * 100.0;
        let speed = self.received as f64 / self.started.elapsed().as_secs_f64();
        let (there, total, speed) = (ByteSize(there), ByteSize(self.total), ByteSize(speed as u64));
        self.watch.now(&format!("{file} · {there} of {total} · {share:.0} % · {speed}/s"));
    }
}

/// One file on its way.
pub(super) struct Transfer<'a> {
    pub(super) web: &'a Web<'a>,
    pub(super) store: &'a Store,
    pub(super) name: &'a Name,
    pub(super) commit: &'a str,
}

/// Why a stream ended early.
enum Ended {
    /// At the other side.
    There(Failure),
    /// At the disk.
    Here(io::Error),
}

impl Transfer<'_> {
    /// Whether the content is in the cache, with its right size. Its hash was checked before it got its name.
    pub(super) fn is_here(&self, remote: &Remote) -> bool {
        fs::metadata(self.store.blob(&remote.etag)).is_ok_and(|found| found.is_file() && found.len() == remote.size)
    }

    /// Brings the content of a file into the cache, from wherever an earlier try left off.
    ///
    /// # Errors
    /// A [`Failure`] of the hub, or one of the disk.
    pub(super) fn bring(&self, remote: &Remote, meter: &mut Meter<'_>) -> Result<()> {
        if self.is_here(remote) {
            return Ok(());
        }
        let _lock = self.store.lock(&remote.etag, meter.watch)?;
        let partial = self.store.partial(&remote.etag);
        let mut tries = 0;
        // Another program may have brought it while this one waited for the lock.
        while !self.is_here(remote) {
            self.receive(remote, &partial, meter)?;
            tries += 1;
            match differs(remote, &partial)? {
                None => {
                    let blob = self.store.blob(&remote.etag);
                    fs::rename(&partial, &blob).with_context(|| format!("can't write {}", blob.display()))?;
                }
                Some(found) => {
                    fs::remove_file(&partial).with_context(|| format!("can't remove {}", partial.display()))?;
                    // The beginning may have been left by another program, or by a disk that lost some of it.
                    if tries == 2 {
                        bail!(
                            "{} of {} arrived damaged twice: its SHA-256 is {found}, and the hub says {}. Something on the \
                             way changes it: try another network, or get the file by other means",
                            remote.name,
                            self.name,
                            remote.etag
                        );
                    }
                    meter.watch.line(&format!("{} arrived damaged: downloading it anew", remote.name));
                }
            }
        }
        meter.done += remote.size;
        Ok(())
    }

    /// Appends to the partial file until it has its size.
    fn receive(&self, remote: &Remote, partial: &Path, meter: &mut Meter<'_>) -> Result<()> {
        let mut patience = Patience::default();
        loop {
            let open = || File::options().create(true).append(true).open(partial);
            let mut file = open().with_context(|| format!("can't write {}", partial.display()))?;
            let start = file.metadata().with_context(|| format!("can't read {}", partial.display()))?.len();
            if start == remote.size {
                return file.sync_all().map_err(|error| self.disk(error, 0));
            }
            let before = meter.received;
            let ended = self.stream(remote, &mut file, start, meter);
            if meter.received > before {
                patience.reward();
            }
            match ended {
                Ok(()) => {}
                Err(Ended::There(failure)) => patience.bear(failure, meter.watch)?,
                Err(Ended::Here(error)) => return Err(self.disk(error, remote.size.saturating_sub(start))),
            }
        }
    }

    /// Appends what one request brings.
    fn stream(&self, remote: &Remote, file: &mut File, start: u64, meter: &mut Meter<'_>) -> Result<(), Ended> {
        let start = if start > remote.size { 0 } else { start };
        let response = self.web.content(self.name, self.commit, &remote.name, start).map_err(Ended::There)?;
        let from = match response.status().as_u16() {
            206 if continues(response.headers(), start, remote.size) => start,
            // The server knows no ranges and sends everything.
            200 => 0,
            _ => {
                file.set_len(0).map_err(Ended::Here)?;
                return Err(Ended::There(Failure::Broken("it was not continued where it broke off".into())));
            }
        };
        if from == 0 && file.metadata().map_err(Ended::Here)?.len() > 0 {
            file.set_len(0).map_err(Ended::Here)?;
        }
        let (mut body, mut chunk, mut here) = (response.into_body().into_reader(), vec![0; CHUNK], from);
        while here < remote.size {
            let limit = CHUNK.min(usize::try_from(remote.size - here).unwrap_or(CHUNK));
            match body.read(&mut chunk[..limit]) {
                Ok(0) => return Err(Ended::There(Failure::Broken("it ended early".into()))),
                Ok(read) => {
                    file.write_all(&chunk[..read]).map_err(Ended::Here)?;
                    here += read as u64;
                    meter.received += read as u64;
                    meter.tell(&remote.name, here);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Ended::There(Failure::midway(error.into()))),
            }
        }
        Ok(())
    }

    /// What to do about a disk that takes no more.
    fn disk(&self, error: io::Error, missing: u64) -> anyhow::Error {
        let folder = self.store.folder().display();
        let advice = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => format!(
                "the disk that holds {folder} is full, and {} more are needed: make room, or set HF_HOME to a folder on \
                 another disk; what has arrived is kept, and the same command goes on from there",
                ByteSize(missing)
            ),
            _ => format!("can't write into {folder}"),
        };
        anyhow::Error::from(error).context(advice)
    }
}

/// Whether a partial answer begins at `start` and belongs to a whole of `size` bytes (RFC 9110, 14.4).
fn continues(headers: &HeaderMap, start: u64, size: u64) -> bool {
    let range = headers.get("content-range").and_then(|value| value.to_str().ok());
    range.and_then(|range| range.strip_prefix("bytes ")?.split_once('-')).is_some_and(|(first, rest)| {
        let whole = rest.split_once('/').map(|(_, whole)| whole);
        first.parse() == Ok(start) && whole.is_some_and(|whole| whole == "*" || whole.parse() == Ok(size))
    })
}

/// The hash that was found instead of the right one, where the hub gave one.
fn differs(remote: &Remote, file: &Path) -> Result<Option<String>> {
    let Some(right) = remote.sha256() else { return Ok(None) };
    let read = || -> io::Result<String> {
        let (mut content, mut chunk, mut hash) = (File::open(file)?, vec![0; CHUNK], Sha256::new());
        loop {
            match content.read(&mut chunk)? {
                0 => return Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()),
                read => hash.update(&chunk[..read]),
            }
        }
    };
    let found = read().with_context(|| format!("can't read {}", file.display()))?;
    Ok((!found.eq_ignore_ascii_case(right)).then_some(found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_person_sees_bytes_share_and_speed() {
        #[derive(Default)]
        struct Seen(Vec<String>);
        impl Watch for Seen {
            fn line(&mut self, text: &str) {
                self.0.push(text.into());
            }
            fn now(&mut self, text: &str) {
                self.0.push(text.into());
            }
        }
        let mut seen = Seen::default();
        let mut meter = Meter::new(&mut seen, 200 << 20);
        meter.done = 20 << 20;
        meter.tell("too-soon", 1);
        let long_ago = Instant::now().checked_sub(Duration::from_secs(10)).expect("a clock that runs");
        (meter.told, meter.started, meter.received) = (long_ago, long_ago, 60 << 20);
        meter.tell("model.safetensors", 80 << 20);
        meter.finish();
        let (speed, end) = (&seen.0[0], &seen.0[1]);
        assert!(speed.starts_with("model.safetensors · 100 MiB of 200 MiB · 50 % · "), "{speed}");
        assert!(speed.ends_with(" MiB/s") && end.starts_with("downloaded 60.0 MiB in 1"), "{speed}, {end}");
    }

    #[test]
    fn ranges_continue_or_not() {
        let continues = |range: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert("content-range", ureq::http::HeaderValue::from_static(range));
            super::continues(&headers, 5, 10)
        };
        assert!(continues("bytes 5-9/10") && continues("bytes 5-9/*"));
        for wrong in ["bytes 0-9/10", "bytes 5-9/11", "bytes */10", "5-9/10", ""] {
            assert!(!continues(wrong), "{wrong}");
        }
        assert!(!super::continues(&HeaderMap::new(), 5, 10));
    }
}
