//! Lengths of time on the command line.

use std::time::Duration;

use crate::plan::bounds;

/// `90s`, `5m`, `1h`, or plain seconds.
pub fn duration(text: &str) -> Result<Duration, String> {
    let (number, factor) = match text.strip_suffix(['s', 'm', 'h']) {
        Some(number) if text.ends_with('m') => (number, 60.0),
        Some(number) if text.ends_with('h') => (number, 3600.0),
        Some(number) => (number, 1.0),
        None => (text, 1.0),
    };
    match number.parse::<f64>() {
        Ok(value) if value > 0.0 && value.is_finite() => match value * factor {
            seconds if seconds > bounds::SECONDS => {
                Err(format!("'{text}' is too long: at most ten years are possible"))
            }
            seconds => Duration::try_from_secs_f64(seconds).map_err(|error| format!("'{text}': {error}")),
        },
        _ => Err(format!("'{text}' is not a time: write 90s, 5m or 1h")),
    }
}

/// `1:05:09`, `5:09`.
pub fn clock(seconds: f64) -> String {
    let s = seconds.round() as u64;
    match s / 3600 {
        0 => format!("{}:{:02}", s / 60, s % 60),
        h => format!("{h}:{:02}:{:02}", s / 60 % 60, s % 60),
    }
}
