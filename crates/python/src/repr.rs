//! Numbers and truth values as they stand in a repr.

/// A number with its thousands apart: 1,204.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The name that Python has for a truth value.
pub(crate) fn truth(value: bool) -> &'static str {
    if value { "True" } else { "False" }
}
