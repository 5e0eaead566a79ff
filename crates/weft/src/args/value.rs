//! Parsers of option values: numbers and sizes within their ranges, dialects, congestion controls; and why a value is
//! refused, for every option.

use std::ops::{Bound, RangeBounds};

use weft_machine::net;

/// Longest sensible busy polling, in microseconds: one second.
pub(super) const MAX_SPIN_US: u64 = 1_000_000;

/// Why a value is refused, and what to write. Clap names the option and the value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Misread {
    /// A congestion control that only root may choose.
    #[error("only root may choose it on this host; every user may choose {0}")]
    CongestionForRoot(String),
    /// A congestion control that this kernel does not offer.
    #[error("this kernel does not offer it; it offers {0}")]
    NoCongestion(String),
    /// Not a number, or too small a one.
    #[error("write a number of at least {0}")]
    NumberFrom(u64),
    /// Not a number, or one out of range.
    #[error("write a number from {least} to {most}")]
    Number { least: u64, most: u64 },
    /// A size out of range.
    #[error("write a size from {} to {}", rounded(*.least), rounded(*.most))]
    Size { least: u64, most: u64 },
    /// A size out of the range that this host's memory allows.
    #[error("write a size from {}M to {}M (the limits on this host), not {text}", least >> 20, most >> 20)]
    Buffers { least: u64, most: u64, text: String },
    /// Nothing has this size.
    #[error("a size is more than 0 (write for example 512M), not {0}")]
    NoSize(String),
    /// A size with a sign.
    #[error("sizes are absolute: write the whole size (for example 3G), not {0}")]
    Relative(String),
    /// An unknown unit.
    #[error("unknown unit {0:?}: write a number with K, M, G or T")]
    Unit(String),
    /// A size without a number.
    #[error("not a size: {0:?} (write for example 512M or 1.5G)")]
    NotASize(String),
    /// A size beyond 64 bits.
    #[error("{0} is more than this system can count")]
    Uncountable(String),
    /// Not a dialect of SMB.
    #[error("no dialect {0}: one of 2.0.2, 2.1, 3.0, 3.0.2, 3.1.1")]
    Dialect(String),
    /// Not a name and a size.
    #[error("write NAME=SIZE, for example scratch=512M")]
    NameAndSize,
    /// Not a name and a pattern.
    #[error("write NAME=PATTERN, for example data=.zfs/snapshot/daily-%Y-%m-%d")]
    NameAndPattern,
    /// Not a network.
    #[error("write ADDRESS/BITS, for example 10.0.0.0/24")]
    Network,
    /// A range whose end is below its beginning.
    #[error("{0}: the smaller number comes first")]
    Descending(String),
    /// A number of a list beyond its limit.
    #[error("{number} is more than the largest, {most}")]
    TooLarge { number: u64, most: u64 },
    /// A duration out of range.
    #[error("write seconds between 0.001 and 86400, for example 0.5")]
    Seconds,
    /// A percentage without a number.
    #[error("not a number: {0:?} (write for example 5)")]
    NotANumber(String),
    /// A percentage out of range.
    #[error("write a percentage from 0 to 1000")]
    Percent,
}

/// A TCP congestion control that this kernel offers and lets us choose.
pub(crate) fn parse_congestion(name: &str) -> Result<String, Misread> {
    use std::io::ErrorKind;
    let list = |which: &str| {
        let listed = std::fs::read_to_string(format!("/proc/sys/net/ipv4/tcp_{which}_congestion_control"));
        listed.map_or_else(|e| format!("(unknown: {e})"), |names| names.trim().to_owned())
    };
    match net::try_congestion(name) {
        Ok(()) => Ok(name.to_owned()),
        Err(e) if e.kind() == ErrorKind::PermissionDenied => Err(Misread::CongestionForRoot(list("allowed"))),
        Err(_) => Err(Misread::NoCongestion(list("available"))),
    }
}

/// A number of this type within a range; the error states the range.
pub(crate) fn number<T: TryFrom<u64>>(
    range: impl RangeBounds<u64> + Clone + Send + std::marker::Sync + 'static,
) -> impl Fn(&str) -> Result<T, Misread> + Clone + Send + std::marker::Sync + 'static {
    move |text| {
        let least = match range.start_bound() {
            Bound::Included(least) => *least,
            Bound::Excluded(below) => below.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let most = match range.end_bound() {
            Bound::Included(most) => *most,
            Bound::Excluded(above) => above.saturating_sub(1),
            Bound::Unbounded => u64::MAX >> (u64::BITS - 8 * size_of::<T>() as u32),
        };
        let number = text.parse().ok().filter(|number| (least..=most).contains(number));
        number.and_then(|number| T::try_from(number).ok()).ok_or(match most {
            u64::MAX => Misread::NumberFrom(least),
            most => Misread::Number { least, most },
        })
    }
}

/// A size in a range.
pub(super) fn parse_within(text: &str, least: u64, most: u64) -> Result<u64, Misread> {
    within(parse_bytes(text)?, least, most)
}

fn within(size: u64, least: u64, most: u64) -> Result<u64, Misread> {
    match (least..=most).contains(&size) {
        true => Ok(size),
        false => Err(Misread::Size { least, most }),
    }
}

/// A size that is to be held in this host's memory.
pub(crate) fn within_memory(size: u64) -> Result<u64, Misread> {
    within(size, 1, memory())
}

/// A size as users write it.
pub(crate) fn rounded(bytes: u64) -> String {
    match bytes {
        0..0x400 => format!("{bytes}"),
        0x400..0x10_0000 => format!("{}K", bytes >> 10),
        0x10_0000.. => format!("{}M", bytes >> 20),
    }
}

/// Bytes of memory of this host.
pub(crate) fn memory() -> u64 {
    let system = rustix::system::sysinfo();
    #[allow(clippy::useless_conversion, reason = "a word of the system, which is shorter elsewhere")]
    u64::from(system.totalram).saturating_mul(u64::from(system.mem_unit))
}

/// "3.0", "3.1.1".
pub(super) fn parse_dialect(text: &str) -> Result<weft_smb::server::Dialect, Misread> {
    use weft_smb::server::Dialect;
    let known = [Dialect::V2_0_2, Dialect::V2_1, Dialect::V3_0, Dialect::V3_0_2, Dialect::V3_1_1];
    let found = known.into_iter().find(|dialect| dialect.to_string() == text);
    found.ok_or_else(|| Misread::Dialect(text.to_owned()))
}

/// "64K", "512M", "1.5G", "4096"; binary multiples. More than 0.
pub(crate) fn parse_size(text: &str) -> Result<u64, Misread> {
    match parse_bytes(text)? {
        0 => Err(Misread::NoSize(text.to_owned())),
        size => Ok(size),
    }
}

/// Like `parse_size`, but 0 is allowed.
pub(super) fn parse_bytes(text: &str) -> Result<u64, Misread> {
    // The parser of numbers accepts a plus sign: `resize vol +1G` would shrink a volume of 8 GiB to 1 GiB.
    if text.starts_with(['+', '-']) {
        return Err(Misread::Relative(text.to_owned()));
    }
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    if digits.is_empty() {
        return Err(Misread::NotASize(text.to_owned()));
    }
    let shift: u32 = match text[digits.len()..].trim_start().to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KIB" => 10,
        "M" | "MIB" => 20,
        "G" | "GIB" => 30,
        "T" | "TIB" => 40,
        other => return Err(Misread::Unit(other.to_owned())),
    };
    let not_a_size = || Misread::NotASize(text.to_owned());
    let (whole, fraction) =
        digits.split_once('.').map_or((digits, None), |(whole, part)| (whole, Some(part)));
    let whole: u64 = whole.parse().map_err(|_| not_a_size())?;
    // Of a fraction, whole units of the next smaller kind count: 1.1T is 1126G.
    let part = match fraction {
        None => 0,
        Some(digits) => {
            let below = shift.checked_sub(10).ok_or_else(not_a_size)?;
            let is_number =
                (1..=MOST_DECIMALS).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit());
            let number: u64 = digits.parse().ok().filter(|_| is_number).ok_or_else(not_a_size)?;
            ((number << 10) / 10_u64.pow(digits.len() as u32)) << below
        }
    };
    let size = whole.checked_mul(1 << shift).and_then(|size| size.checked_add(part));
    size.ok_or_else(|| Misread::Uncountable(text.to_owned()))
}

/// Digits after the point of a size.
const MOST_DECIMALS: usize = 9;

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::Args;

    #[test]
    fn what_the_kernel_does_not_offer_is_refused_with_what_it_does() {
        assert_eq!(parse_congestion("reno"), Ok("reno".to_owned()));
        for name in ["nope", ""] {
            let refused = parse_congestion(name).unwrap_err().to_string();
            assert!(refused.contains("it offers") && refused.contains("reno"), "{refused}");
        }
        let serve = |option, value| Args::try_parse_from(["weft", "serve", "data", option, value]);
        assert!(serve("--congestion", "reno").is_ok());
        assert!(serve("--congestion", "nope").unwrap_err().to_string().contains("it offers"));
        for command in [&["weft", "rdma", "ping", "host"][..], &["weft", "bench", "smb", "local"]] {
            let args = [command, &["--congestion", "nope"]].concat();
            assert!(Args::try_parse_from(args).unwrap_err().to_string().contains("it offers"), "{command:?}");
        }
        assert!(serve("--user", "alice").is_ok());
        assert!(serve("--user", "").is_err());
    }

    #[test]
    fn numbers_that_make_no_sense_are_refused_with_their_range() {
        let most = rounded(memory());
        for (line, says) in [
            ("weft ls smb://a@h/s --channels 0", "from 1 to 16"),
            ("weft ls smb://a@h/s --channels 17", "from 1 to 16"),
            ("weft cp smb://a@h/s/x . --block 1", "512 to 16M"),
            ("weft cp smb://a@h/s/x . --block 17M", "512 to 16M"),
            ("weft cp smb://a@h/s/x . --queue-depth 0", "from 1 to 1024"),
            ("weft sync smb://a@h/s . --files 0", "from 1 to 64"),
            ("weft serve --ram x=100000T", &most),
            ("weft serve --ram scratch=0", &most),
            ("weft serve d --cores 0", "from 1 to 1024"),
            ("weft serve d --spin-us 99999999", "from 0 to 1000000"),
            ("weft status --watch --every 0", "from 1 to 86400"),
            ("weft status --pid 0", "from 1 to 4294967295"),
            ("weft demo --repetitions 0", "from 1 to 1000"),
            ("weft demo --duration-ms 0", "from 1 to 600000"),
            ("weft demo --file-size 1", "from 1M to 512M"),
            ("weft demo --file-size 600M", "from 1M to 512M"),
            ("weft demo --over tcp,xyz", "possible values: tcp, iwarp, iwarp-nocrc, shm"),
            ("weft bench smb local --until-steady=-1", "from 0 to 1000"),
            ("weft bench smb local --server-pid 0", "from 1 to 4294967295"),
            ("weft rdma perf client h --spin-us 99999999", "from 0 to 1000000"),
            ("weft doctor h --timeout 0", "0.001"),
            // A value that begins with a hyphen is a value, too.
            ("weft cp smb://a@h/s/x . --queue-depth -1", "from 1 to 1024"),
            ("weft serve d --smb-port -1", "from 0 to 65535"),
            ("weft serve d --smb-port 70000", "from 0 to 65535"),
            (
                "weft serve d --nfs-port x",
                "invalid value 'x' for '--nfs-port <N>': write a number from 0 to 65535",
            ),
            ("weft demo --file-size -1", "sizes are absolute"),
            ("weft demo --file-size -1M", "sizes are absolute"),
            ("weft bench smb local --duration -1", "between 0.001 and 86400"),
            ("weft rdma perf client h --count 0", "write a number of at least 1"),
            ("weft rdma ping h --count -1", "write a number of at least 1"),
            ("weft doctor h --timeout -1", "0.001"),
            ("weft replica status --pid -1", "from 0 to 4294967295"),
            ("weft doctor h --smb-port 0", "from 1 to 65535"),
        ] {
            let refused = Args::of_line(line.split(' ')).expect_err(line).to_string();
            assert!(refused.contains(says), "{line}: {refused}");
            assert!(!refused.contains("unexpected argument"), "{line}: {refused}");
        }
    }

    #[test]
    fn sizes_have_binary_units() {
        assert_eq!(parse_size("4096"), Ok(4096));
        assert_eq!(parse_size("64k"), Ok(65536));
        assert_eq!(parse_size("1GiB"), Ok(1 << 30));
        assert_eq!(parse_size("200 GiB"), Ok(200 << 30));
        assert_eq!(parse_size("1.5T"), Ok(1536 << 30));
        assert_eq!(parse_size("0.25K"), Ok(256));
        // A tenth is no binary fraction, so the rest below the next smaller unit is dropped.
        assert_eq!(parse_size("1.1T"), Ok(1126 << 30));
        for wrong in ["1.5", "1.5B", ".5T", "1.2.3T", "1.0000000001T", "1,5T", "1.-5T", "0.0001K"] {
            let refused = parse_size(wrong).unwrap_err().to_string();
            assert!(refused.contains("for example 512M") && refused.contains(wrong), "{wrong}: {refused}");
        }
        assert!(parse_size("16777215.9999T").is_ok() && parse_size("16777216T").is_err());
        assert!(parse_size("0").is_err());
        assert!(parse_size("5X").is_err());
        assert!(parse_size("").is_err());
        assert!(parse_size("lots").unwrap_err().to_string().contains("for example 512M"));
        let relative = ["+1G", "-1G", "+4096"].map(|text| parse_size(text).unwrap_err());
        assert!(relative.iter().all(|why| matches!(why, Misread::Relative(_))), "{relative:?}");
        assert!(parse_size("99999999999T").is_err());
    }
}
