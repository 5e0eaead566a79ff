//! Formats figures: units, sizes and names that all printers share.

use crate::result::{Spread, Unit};

/// "12.3 us" style: three significant digits and a suitable unit.
pub(crate) fn nanos(value: f64) -> String {
    match value {
        v if v >= 1e9 => format!("{:.2} s", v / 1e9),
        v if v >= 1e6 => format!("{} ms", digits(v / 1e6)),
        v if v >= 1e3 => format!("{} us", digits(v / 1e3)),
        v => format!("{v:.0} ns"),
    }
}

/// Bytes per second in MB/s (10^6) or GB/s (10^9).
pub(crate) fn rate(value: f64) -> String {
    match value {
        v if v >= 1e9 => format!("{:.2} GB/s", v / 1e9),
        v if v >= 1e7 => format!("{:.0} MB/s", v / 1e6),
        v => format!("{:.2} MB/s", v / 1e6),
    }
}

/// A count: "950", "12.3k", "1.25M".
pub(crate) fn count(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{}M", digits(v / 1e6)),
        v if v >= 1e4 => format!("{}k", digits(v / 1e3)),
        v if v >= 10.0 || v == 0.0 => format!("{v:.0}"),
        v => format!("{v:.1}"),
    }
}

/// Bytes in binary units.
pub(crate) fn bytes(value: f64) -> String {
    match value {
        v if v >= f64::from(1 << 30) => format!("{} GiB", digits(v / f64::from(1 << 30))),
        v if v >= f64::from(1 << 20) => format!("{} MiB", digits(v / f64::from(1 << 20))),
        v if v >= 1024.0 => format!("{} KiB", digits(v / 1024.0)),
        v => format!("{v:.0} B"),
    }
}

/// Three significant digits.
pub(crate) fn digits(value: f64) -> String {
    match value {
        v if v >= 99.95 => format!("{v:.0}"),
        v if v >= 9.995 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

/// "0.5": without trailing zeros.
pub(crate) fn short(value: f64) -> String {
    trimmed(&digits(value)).to_owned()
}

/// A number without trailing zeros in its fraction.
pub(crate) fn trimmed(number: &str) -> &str {
    if number.contains('.') { number.trim_end_matches('0').trim_end_matches('.') } else { number }
}

/// A figure of `unit`.
pub(crate) fn value(unit: Unit, value: f64) -> String {
    match unit {
        Unit::Rate => rate(value),
        Unit::Time => nanos(value),
        Unit::PerSecond => count(value),
        Unit::Cycles | Unit::Number => digits(value),
        Unit::Percent => format!("{value:.0}%"),
        Unit::Bytes => bytes(value),
    }
}

/// The spread of the repetitions: half the range in percent of the median.
pub(crate) fn noise(spread: &Spread) -> String {
    format!("{:.0}%", 100.0 * spread.noise())
}

/// "0.37".
pub(crate) fn ratio(value: f64) -> String {
    if value >= 99.95 {
        format!("{value:.0}")
    } else if value >= 9.995 {
        format!("{value:.1}")
    } else {
        format!("{value:.2}")
    }
}

/// A transport's name for people.
pub(crate) fn transport(name: &str) -> &str {
    match name {
        "tcp" => "TCP",
        "iwarp" => "iWARP",
        "iwarp-nocrc" => "iWARP, no CRC",
        "shm" => "shared memory",
        "rnic" => "RDMA device",
        "local" => "not replicated",
        "async" => "asynchronous",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_zeros_behind_the_point_say_nothing() {
        assert_eq!(
            [short(0.5), short(1.0), short(20.0), short(100.0), short(0.0)].join(" "),
            "0.5 1 20 100 0"
        );
    }

    #[test]
    fn figures_have_three_digits_and_a_unit_that_fits() {
        assert_eq!(
            [nanos(999.0), nanos(5_230.0), nanos(13_900.0), nanos(1.5e6), nanos(2e9)].join(" "),
            "999 ns 5.23 us 13.9 us 1.50 ms 2.00 s"
        );
        assert_eq!([rate(4.65e9), rate(250e6), rate(1.5e6)].join(" "), "4.65 GB/s 250 MB/s 1.50 MB/s");
        assert_eq!(
            [count(0.0), count(2.5), count(999.0), count(71_234.0), count(1_250_000.0)].join(" "),
            "0 2.5 999 71.2k 1.25M"
        );
        assert_eq!([bytes(12.0), bytes(6246.0), bytes(64.0 * 1048576.0)].join(" "), "12 B 6.10 KiB 64.0 MiB");
    }
}
