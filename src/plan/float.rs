//! Floats in JSON, which has no word for those that are not finite: serde would write null, which reads back as no float
//! at all. Here they are the strings that Rust prints, `"NaN"`, `"inf"` and `"-inf"`; finite ones stay numbers.
//!
//! `#[serde(with = "float")]` is for an `f64`, [`maybe`] for an `Option`, [`list`] for a `Vec`.

use std::fmt;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Writes an `f64`.
///
/// # Errors
/// If it can't be written.
pub fn serialize<S: Serializer>(value: &f64, to: S) -> Result<S::Ok, S::Error> {
    Float(*value).serialize(to)
}

/// Reads an `f64`.
///
/// # Errors
/// If it is neither a number nor one of the three strings.
pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Float::deserialize(from).map(|float| float.0)
}

/// The same for an `Option<f64>`.
pub mod maybe {
    use super::*;

    /// Writes an `Option<f64>`.
    ///
    /// # Errors
    /// If it can't be written.
    pub fn serialize<S: Serializer>(value: &Option<f64>, to: S) -> Result<S::Ok, S::Error> {
        value.map(Float).serialize(to)
    }

    /// Reads an `Option<f64>`.
    ///
    /// # Errors
    /// If it is there and no float.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
        Ok(Option::<Float>::deserialize(from)?.map(|float| float.0))
    }
}

/// The same for a `Vec<f64>`.
pub mod list {
    use super::*;

    /// Writes a slice of `f64`.
    ///
    /// # Errors
    /// If it can't be written.
    pub fn serialize<S: Serializer>(values: &[f64], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(values.iter().map(|&value| Float(value)))
    }

    /// Reads a `Vec<f64>`.
    ///
    /// # Errors
    /// If an element is no float.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<f64>, D::Error> {
        Ok(Vec::<Float>::deserialize(from)?.into_iter().map(|float| float.0).collect())
    }
}

#[derive(Clone, Copy)]
struct Float(f64);

impl Serialize for Float {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        if self.0.is_finite() { to.serialize_f64(self.0) } else { to.collect_str(&self.0) }
    }
}

impl<'de> Deserialize<'de> for Float {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Reader)
    }
}

struct Reader;

impl Visitor<'_> for Reader {
    type Value = Float;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number, or one of the strings NaN, inf and -inf")
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Float, E> {
        Ok(Float(value))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Float, E> {
        Ok(Float(value as f64))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Float, E> {
        Ok(Float(value as f64))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Float, E> {
        match text {
            "NaN" => Ok(Float(f64::NAN)),
            "inf" => Ok(Float(f64::INFINITY)),
            "-inf" => Ok(Float(f64::NEG_INFINITY)),
            _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Serialize, Deserialize)]
    struct Floats {
        #[serde(with = "super")]
        one: f64,
        #[serde(default, skip_serializing_if = "Option::is_none", with = "maybe")]
        perhaps: Option<f64>,
        #[serde(with = "list")]
        many: Vec<f64>,
    }

    #[test]
    fn every_float_comes_back_as_itself() {
        let all = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0, 0.1, 3.0, f64::MAX, f64::MIN_POSITIVE, -7.0];
        for one in all {
            for perhaps in [None, Some(one)] {
                let floats = Floats { one, perhaps, many: all.to_vec() };
                let through = serde_json::to_string(&floats).unwrap();
                let back: Floats = serde_json::from_str(&through).unwrap();
                assert_eq!(format!("{back:?}"), format!("{floats:?}"), "{through}");
                let value = serde_json::to_value(&floats).unwrap();
                assert_eq!(format!("{:?}", serde_json::from_value::<Floats>(value).unwrap()), format!("{floats:?}"));
            }
        }
        assert_eq!(
            serde_json::to_string(&Floats { one: f64::NAN, perhaps: None, many: vec![1.5, f64::NEG_INFINITY] })
                .unwrap(),
            r#"{"one":"NaN","many":[1.5,"-inf"]}"#
        );
    }

    #[test]
    fn what_is_no_float_is_refused() {
        for text in [r#"{"one":null,"many":[]}"#, r#"{"one":"1","many":[]}"#, r#"{"one":1,"many":["nan"]}"#] {
            let error = serde_json::from_str::<Floats>(text).unwrap_err().to_string();
            assert!(error.contains("NaN, inf and -inf"), "{error}");
        }
        assert_eq!(serde_json::from_str::<Floats>(r#"{"one":7,"many":[-7]}"#).unwrap().many, [-7.0]);
    }
}
