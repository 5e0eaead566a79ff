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

/// "10G", "1536K", "513": exactly, in the largest unit that divides it, as options and files take it.
pub(crate) fn exact(bytes: u64) -> String {
    let units = [(40, "T"), (30, "G"), (20, "M"), (10, "K")];
    let unit = units.into_iter().find(|(shift, _)| bytes > 0 && bytes.is_multiple_of(1 << shift));
    unit.map_or_else(|| bytes.to_string(), |(shift, unit)| format!("{}{unit}", bytes >> shift))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_sizes_lose_nothing() {
        for (bytes, said) in
            [(0, "0"), (513, "513"), (1536 << 10, "1536K"), (200 << 30, "200G"), (1 << 50, "1024T")]
        {
            assert_eq!(exact(bytes), said);
        }
    }

    #[test]
    fn sizes_read_as_people_write_them() {
        let said = [0, 513, 1024, 1536, 10 << 30, (1 << 40) + (1 << 39), u64::MAX].map(human);
        assert_eq!(said, ["0 B", "513 B", "1 KiB", "1.5 KiB", "10 GiB", "1.5 TiB", "16 EiB"]);
    }
}
