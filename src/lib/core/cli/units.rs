//! Numbers for people: counts, rates, durations and sizes.

/// A whole number with commas between thousands: `12,345,678`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Three significant digits, or all before the point: `7,730`, `15.1`, `0.0797`.
pub fn significant(number: f64) -> String {
    if !number.is_finite() || number == 0.0 {
        return number.to_string();
    }
    // By the rounded number: 9.996 has two digits before its point.
    let rounded: f64 = format!("{number:.2e}").parse().unwrap_or(number);
    let digits = 2 - rounded.abs().log10().floor() as i32;
    if digits <= 0 {
        let sign = if number < 0.0 { "-" } else { "" };
        return format!("{sign}{}", grouped(number.abs().round() as u64));
    }
    format!("{number:.*}", digits as usize)
}

/// Seconds with enough digits never to read zero: `468 s`, `0.00797 s`.
pub fn seconds(seconds: f64) -> String {
    format!("{} s", significant(seconds))
}

/// About how long something still takes: `51 s`, `12 min`, `3 h 20 min`.
pub fn remaining(seconds: f64) -> String {
    let whole = seconds.max(0.0).ceil() as u64;
    match whole {
        0..120 => format!("{whole} s"),
        120..7200 => format!("{} min", whole.div_ceil(60)),
        _ => format!("{} h {} min", whole / 3600, whole % 3600 / 60),
    }
}

/// Bytes in powers of 1000: `512 B`, `77.1 MB`.
pub fn bytes(bytes: f64) -> String {
    let mut number = bytes;
    for unit in ["B", "kB", "MB", "GB"] {
        if number < 999.5 {
            return format!("{} {unit}", significant(number));
        }
        number /= 1000.0;
    }
    format!("{} TB", significant(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_by_thousands() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (12_345_678, "12,345,678")]
        {
            assert_eq!(grouped(number), text);
        }
    }

    #[test]
    fn three_digits_are_kept_at_every_size() {
        for (number, text) in [
            (7729.8, "7,730"),
            (15.132, "15.1"),
            (9.996, "10.0"),
            (999.7, "1,000"),
            (2.0, "2.00"),
            (0.0079694, "0.00797"),
            (0.0, "0"),
            (-15.132, "-15.1"),
        ] {
            assert_eq!(significant(number), text);
        }
    }

    #[test]
    fn a_duration_never_reads_zero_unless_it_is() {
        assert_eq!(seconds(0.0079694), "0.00797 s");
        assert_eq!(seconds(1e-9), "0.00000000100 s");
        assert_eq!(remaining(50.2), "51 s");
        assert_eq!(remaining(0.2), "1 s");
        assert_eq!(remaining(7199.0), "120 min");
        assert_eq!(remaining(12_000.0), "3 h 20 min");
    }

    #[test]
    fn sizes_take_the_unit_that_fits() {
        for (number, text) in
            [(512.0, "512 B"), (999.6, "1.00 kB"), (77.1e6, "77.1 MB"), (3.2e15, "3,200 TB")]
        {
            assert_eq!(bytes(number), text);
        }
    }
}
