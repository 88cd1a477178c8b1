//! Names of workers, which the dialect has as numbers where they are some.

/// True if a name is a 64-bit integer as it would be written.
#[must_use]
pub fn is_number(name: &str) -> bool {
    let bytes = name.as_bytes();
    let digits = (1..=20).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_digit);
    digits && (bytes[0] != b'0' || bytes.len() == 1) && (bytes.len() < 20 || name.parse::<u64>().is_ok())
}

/// A worker's name as JSON: a number if it looks like one.
#[must_use]
pub fn id_value(name: &str) -> serde_json::Value {
    match name.parse::<u64>() {
        Ok(number) if is_number(name) => number.into(),
        _ => name.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_numbers() {
        for (name, number) in [
            ("0", true),
            ("7", true),
            ("18446744073709551615", true),
            ("18446744073709551616", false),
            ("99999999999999999999", false),
            ("007", false),
            ("00", false),
            ("-1", false),
            ("", false),
            ("7a", false),
            ("+7", false),
            ("123456789012345678901", false),
        ] {
            assert_eq!(is_number(name), number, "{name}");
            assert_eq!(id_value(name).is_u64(), number, "{name}");
        }
    }
}
