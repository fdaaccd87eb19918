//! Event files as TensorBoard reads them: TFRecord frames around `Event` messages in protocol-buffer encoding.
//!
//! A frame is the message's length (64 bits, little-endian), the masked CRC-32C of these eight bytes, the message, and
//! its masked CRC-32C. Sources of the format: `tensorflow/core/lib/io/record_writer.h`, `core/util/event.proto` and
//! `core/framework/summary.proto` of TensorFlow.

use std::io::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

/// An event file being written.
#[derive(Debug)]
pub struct EventFile<W: Write> {
    to: W,
}

impl<W: Write> EventFile<W> {
    /// Begins a file.
    ///
    /// # Errors
    /// If it can't be written to.
    pub fn new(to: W) -> io::Result<Self> {
        let mut file = EventFile { to };
        let mut event = Vec::new();
        double(&mut event, 1, now());
        bytes(&mut event, 3, b"brain.Event:2");
        file.frame(&event)?;
        Ok(file)
    }

    /// Writes values by their tags, all of one step.
    ///
    /// # Errors
    /// If they can't be written.
    pub fn scalars(&mut self, step: usize, values: &[(&str, f64)]) -> io::Result<()> {
        let mut summary = Vec::new();
        for (tag, scalar) in values {
            let mut value = Vec::new();
            bytes(&mut value, 1, tag.as_bytes());
            key(&mut value, 2, 5);
            value.extend((*scalar as f32).to_le_bytes());
            bytes(&mut summary, 1, &value);
        }
        let mut event = Vec::new();
        double(&mut event, 1, now());
        key(&mut event, 2, 0);
        varint(&mut event, step as u64);
        bytes(&mut event, 5, &summary);
        self.frame(&event)
    }

    fn frame(&mut self, message: &[u8]) -> io::Result<()> {
        let length = (message.len() as u64).to_le_bytes();
        let frame = [&length[..], &masked(&length), message, &masked(message)].concat();
        self.to.write_all(&frame)?;
        self.to.flush()
    }
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// A CRC-32C, rotated and shifted as record_writer.h does it: a checksum of data that holds checksums would be weak.
fn masked(data: &[u8]) -> [u8; 4] {
    crc32c::crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}

/// Field number and wire type.
fn key(to: &mut Vec<u8>, field: u64, wire: u64) {
    varint(to, field << 3 | wire);
}

fn varint(to: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        to.push(value as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}

fn double(to: &mut Vec<u8>, field: u64, value: f64) {
    key(to, field, 1);
    to.extend(value.to_le_bytes());
}

fn bytes(to: &mut Vec<u8>, field: u64, value: &[u8]) {
    key(to, field, 2);
    varint(to, value.len() as u64);
    to.extend(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Frames whose checksums are right.
    fn frames(mut data: &[u8]) -> Vec<Vec<u8>> {
        let mut found = Vec::new();
        while !data.is_empty() {
            let length = u64::from_le_bytes(data[..8].try_into().expect("eight bytes")) as usize;
            let message = &data[12..12 + length];
            assert_eq!(data[8..12], masked(&data[..8]));
            assert_eq!(data[12 + length..16 + length], masked(message));
            found.push(message.to_vec());
            data = &data[16 + length..];
        }
        found
    }

    #[test]
    fn an_event_is_laid_out_as_tensorboard_reads_it() -> io::Result<()> {
        let mut data = Vec::new();
        EventFile::new(&mut data)?.scalars(300, &[("a", 0.5), ("loss", 2.0)])?;
        let frames = frames(&data);
        assert_eq!(frames[0][9..], *b"\x1a\x0dbrain.Event:2");
        // Step 300 is the varint ac 02; a summary of 10 + 13 bytes follows.
        let expected =
            b"\x10\xac\x02\x2a\x17\x0a\x08\x0a\x01a\x15\x00\x00\x00\x3f\x0a\x0b\x0a\x04loss\x15\x00\x00\x00\x40";
        assert_eq!(frames[1][9..], *expected);
        Ok(())
    }

    /// CRC-32C of nine digits is e3069283 (RFC 3720's polynomial).
    #[test]
    fn the_checksum_is_castagnolis() {
        assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
    }
}
