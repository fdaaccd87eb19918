//! Numbers on the command line, held within [`bounds`] where they are read.

use crate::plan::bounds::{self, within};

/// A whole number from `LEAST` to `MOST`.
pub fn count<const LEAST: usize, const MOST: usize>(text: &str) -> Result<usize, String> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("a whole number is needed".into());
    }
    // More digits than any type has are a number nonetheless.
    let value = if text.starts_with('-') { i128::MIN } else { i128::MAX };
    let value = text.parse::<i128>().unwrap_or(value);
    within(value, LEAST as i128..=MOST as i128).map(|value| value as usize)
}

/// A seed.
pub fn seed(text: &str) -> Result<u64, String> {
    const MOST: usize = bounds::SEED as usize;
    count::<0, MOST>(text).map(|seed| seed as u64)
}

/// A share from 0 up to, not including, 1.
pub fn share(text: &str) -> Result<f64, String> {
    Some(number(text)?)
        .filter(|share| (0.0..1.0).contains(share))
        .ok_or_else(|| "a share from 0 up to (not including) 1 is needed".into())
}

/// A number above 0.
pub fn positive(text: &str) -> Result<f64, String> {
    Some(number(text)?).filter(|value| *value > 0.0).ok_or_else(|| "a number above 0 is needed".into())
}

/// 0 or more.
pub fn not_negative(text: &str) -> Result<f64, String> {
    Some(number(text)?).filter(|value| *value >= 0.0).ok_or_else(|| "0 or more is needed".into())
}

/// Times through the data.
pub fn epochs(text: &str) -> Result<f64, String> {
    within(positive(text)?, 0.0..=bounds::EPOCHS)
}

/// A number as there are: neither infinite nor none at all.
fn number(text: &str) -> Result<f64, String> {
    text.parse::<f64>().ok().filter(|value| value.is_finite()).ok_or_else(|| "a finite number is needed".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_of_any_length() {
        let count = count::<1, 9>;
        assert_eq!((count("1"), count("+9"), count("007")), (Ok(1), Ok(9), Ok(7)));
        for low in ["0", "-1", "-99999999999999999999999999999999999999999999"] {
            assert_eq!(count(low), Err("at least 1 is needed".into()), "{low}");
        }
        for high in ["10", "18446744073709551616", "99999999999999999999999999999999999999999999"] {
            assert_eq!(count(high), Err("at most 9 are possible".into()), "{high}");
        }
        for other in ["", "-", "1.5", "1e3", "nan", "0x1", " 1", "١"] {
            assert_eq!(count(other), Err("a whole number is needed".into()), "{other}");
        }
        assert_eq!(seed("9223372036854775807"), Ok(bounds::SEED));
        assert!(seed("9223372036854775808").is_err());
    }

    #[test]
    fn what_is_no_number_is_no_share_either() {
        for reader in [share, positive, not_negative, epochs] {
            for text in ["nan", "inf", "-inf", "-1", "1e999", "x", ""] {
                assert!(reader(text).is_err(), "{text}");
            }
            assert_eq!(reader("0.5"), Ok(0.5));
        }
        assert!(share("1").is_err() && share("0").is_ok() && positive("0").is_err() && not_negative("0").is_ok());
        assert!(epochs("1e7").is_err());
    }
}
