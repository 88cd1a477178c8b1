//! Times formatted as by Python's `datetime.now().strftime`, with which engines render templates.

use std::iter::Peekable;
use std::str::Chars;

use jiff::fmt::strtime::{BrokenDownTime, Config, PosixCustom};
use jiff::{Error, Zoned};

/// Directives that Python leaves to the C library, and that jiff writes like the C locale, Python's default.
const SHARED: &str = "aAbBcCdDeFgGhHIjklmMnpPrRsStTuUVwWxXyY%";

/// Formats a time. It has no zone, like `datetime.now()`: `%Z` and `%z` are empty.
pub(super) fn strftime(format: &str, now: &Zoned) -> Result<String, Error> {
    let config = Config::new().custom(PosixCustom::new());
    let mut own = String::with_capacity(format.len());
    let mut rest = format.chars().peekable();
    while let Some(char) = rest.next() {
        own.push(char);
        if char == '%' {
            own.pop();
            directive(&mut rest, now, &mut own);
        }
    }
    BrokenDownTime::from(now).to_string_with_config(&config, &own)
}

/// Writes the directive after a percent sign, by jiff where both agree.
fn directive(rest: &mut Peekable<Chars<'_>>, now: &Zoned, out: &mut String) {
    let mut flags = String::new();
    while let Some(flag) = rest.next_if(|char| matches!(char, '-' | '_' | '^' | '#' | ':' | '0'..='9')) {
        flags.push(flag);
    }
    let other_digits = rest.next_if(|char| matches!(char, 'E' | 'O'));
    match rest.next_if(|char| SHARED.contains(*char) || matches!(char, 'z' | 'Z' | 'f')) {
        Some('z' | 'Z') => {}
        Some('f') if flags.is_empty() && other_digits.is_none() => {
            out.push_str(&format!("{:06}", now.subsec_nanosecond() / 1_000));
        }
        // The C locale has no alternative digits or eras.
        Some(shared) if shared != 'f' && !flags.contains(':') => {
            out.push('%');
            out.push_str(&flags);
            out.push(shared);
        }
        // Unknown directives are copied.
        unknown => {
            out.push_str("%%");
            out.push_str(&flags);
            out.extend(other_digits);
            out.extend(unknown);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected values are from Python 3.12, with `dt.datetime(2026, 3, 5, 7, 8, 9, 120)`.
    #[test]
    fn times_are_as_python_writes_them() {
        let now: jiff::civil::DateTime = "2026-03-05T07:08:09.000120".parse().unwrap();
        let now = now.in_tz("America/New_York").or_else(|_| now.to_zoned(jiff::tz::TimeZone::UTC)).unwrap();
        for (format, expected) in [
            ("%d %b %Y", "05 Mar 2026"),
            ("%c", "Thu Mar  5 07:08:09 2026"),
            ("%x|%X|%r", "03/05/26|07:08:09|07:08:09 AM"),
            ("%Z|%z|%-Z|%:z|%H:%M %Z", "||||07:08 "),
            ("%f", "000120"),
            ("%a %A %b %B %h %C %D %e %F %g %G", "Thu Thursday Mar March Mar 20 03/05/26  5 2026-03-05 26 2026"),
            ("%H %I %j %k %l %m %M %p %P %R %S %T", "07 07 064  7  7 03 08 AM am 07:08 09 07:08:09"),
            ("%u %U %V %w %W %y %n %t %%", "4 09 10 4 09 26 \n \t %"),
            ("%-d %_d %^a %#p %05d %-I", "5  5 THU am 00005 7"),
            ("%Ey %Ex %Od", "26 03/05/26 05"),
            ("%E %Q %i %L %N %q %J %K %o %v %-f %3f", "%E %Q %i %L %N %q %J %K %o %v %-f %3f"),
            ("100% %", "100% %"),
            ("%%Z %%c", "%Z %c"),
            ("", ""),
            ("日本 %Y年", "日本 2026年"),
        ] {
            assert_eq!(strftime(format, &now).unwrap(), expected, "{format}");
        }
    }
}
