//! Sizes as people read them.

/// "10 GiB", "1.5 MiB", "513 B": binary units, with one decimal if it is significant.
pub(crate) fn human(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let unit = (bytes.max(1).ilog2() / 10) as usize;
    let value = bytes as f64 / (1_u64 << (10 * unit)) as f64;
    match units[unit] {
        "B" => format!("{bytes} B"),
        name if value.fract() < 0.05 || value >= 100.0 => format!("{value:.0} {name}"),
        name => format!("{value:.1} {name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_as_people_write_them() {
        let said = [0, 513, 1024, 1536, 10 << 30, (1 << 40) + (1 << 39), u64::MAX].map(human);
        assert_eq!(said, ["0 B", "513 B", "1 KiB", "1.5 KiB", "10 GiB", "1.5 TiB", "16 EiB"]);
    }
}
