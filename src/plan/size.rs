//! Byte sizes as people write them: `6G`, `6GiB`, `500M`, `1.5G`. `G` is GiB, as on cards.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::bounds;

/// A number of bytes that reads and prints in binary units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ByteSize(pub u64);

/// Unit letters with the power of 1024 they stand for.
const UNITS: [(char, u32); 4] = [('K', 1), ('M', 2), ('G', 3), ('T', 4)];

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refuse = || {
            format!("'{text}' is not a memory size: write a number and a unit, as in 6G, 500M or 1.5GiB (G means GiB)")
        };
        let upper = text.trim().to_ascii_uppercase();
        let split = upper.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(upper.len());
        let (number, unit) = upper.split_at(split);
        let value: f64 = number.parse().map_err(|_| refuse())?;
        let unit = unit.trim();
        let power = match unit {
            "B" => 0,
            _ => UNITS
                .iter()
                .find(|(letter, _)| {
                    [format!("{letter}"), format!("{letter}B"), format!("{letter}IB")].iter().any(|u| u == unit)
                })
                .map(|&(_, power)| power)
                .ok_or_else(refuse)?,
        };
        let bytes = value * 1024f64.powi(power as i32);
        if !bytes.is_finite() || bytes < 1.0 || bytes > bounds::BYTES as f64 {
            return Err(refuse());
        }
        Ok(ByteSize(bytes.round() as u64))
    }
}

impl fmt::Display for ByteSize {
    /// Three significant digits in the largest unit in which what is printed is 1 or more: a byte less than 1 MiB prints
    /// as 1.00 MiB, never as 1024 KiB.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // What rounds to the next unit belongs to it: half of the last digit printed there.
        let reaches = |power: u32| self.0 as f64 >= 1024f64.powi(power as i32) - 0.5 * 1024f64.powi(power as i32 - 1);
        let Some(&(letter, power)) = UNITS.iter().rev().find(|&&(_, power)| reaches(power)) else {
            return f.pad(&format!("{} B", self.0));
        };
        let value = self.0 as f64 / 1024f64.powi(power as i32);
        let digits = match value {
            small if small < 9.995 => 2,
            middle if middle < 99.95 => 1,
            _ => 0,
        };
        f.pad(&format!("{value:.digits$} {letter}iB"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_people_write() {
        let bytes = |t: &str| t.parse::<ByteSize>().map(|s| s.0);
        assert_eq!(bytes("6G"), Ok(6 << 30));
        assert_eq!(bytes("6GiB"), Ok(6 << 30));
        assert_eq!(bytes(" 6 gb "), Ok(6 << 30));
        assert_eq!(bytes("500M"), Ok(500 << 20));
        assert_eq!(bytes("1.5G"), Ok(3 << 29));
        assert_eq!(bytes("4096B"), Ok(4096));
    }

    #[test]
    fn refuses_nonsense() {
        for text in ["", "G", "6", "6X", "-1G", "0G", "1e9G", "6GG", "six", "1..5G", "inf", "NaNG", "99999999999T"] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
    }

    #[test]
    fn prints_three_digits() {
        assert_eq!(ByteSize(6 << 30).to_string(), "6.00 GiB");
        assert_eq!(ByteSize(1433 << 20).to_string(), "1.40 GiB");
        assert_eq!(ByteSize(500 << 20).to_string(), "500 MiB");
        assert_eq!(ByteSize(12).to_string(), "12 B");
        assert_eq!(ByteSize(1023).to_string(), "1023 B");
    }

    #[test]
    fn what_rounds_to_the_next_unit_is_printed_in_it() {
        for (power, unit) in [(1u32, "KiB"), (2, "MiB"), (3, "GiB"), (4, "TiB")] {
            let whole = 1024u64.pow(power);
            if power > 1 {
                let below = ByteSize(whole - 1).to_string();
                assert_eq!(below, format!("1.00 {unit}"));
            }
            assert_eq!(ByteSize(10 * whole - whole / 1000).to_string(), format!("10.0 {unit}"));
            assert_eq!(ByteSize(100 * whole - whole / 100).to_string(), format!("100 {unit}"));
        }
    }
}
