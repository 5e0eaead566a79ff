//! `weft replica verify`: compares both sides, and overwrites the copy's bytes only on request. The source compares.
//! If data has decayed, only a person can decide which side is right.

use std::path::Path;
use std::process::ExitCode;

use serde_json::json;

use super::{VERIFY_PATIENCE, ask, one};
use crate::Failure;
use crate::admin::replica::{Command, Differs, Reply};
use crate::args::ReplicaVerify;
use crate::out::ShellCommand;
use crate::size::human;

/// Runs the command.
pub(super) fn run(state: &Path, pid: Option<u32>, args: ReplicaVerify) -> Result<ExitCode, Failure> {
    let (group, to) = (args.group.group, args.group.to);
    // `--repair` alone only compares: the user must first find out which side is right.
    let repair = args.repair && args.force;
    let command = Command::Verify { group: group.clone(), to: to.clone(), repair };
    let Reply::Verified { bytes, different, first, source, copy } =
        ask(&one(state, pid)?, command, VERIFY_PATIENCE)?
    else {
        return Err("unexpected answer of the server".into());
    };
    let found = Found { group, to, bytes, different, first, source, copy };
    match args.json {
        true => say!("{}", found.json(repair))?,
        false => say!("{}", found.text(repair))?,
    }
    Ok(if different == 0 || repair { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The result of a comparison, and its two sides.
struct Found {
    group: String,
    /// The destination, as the user named it.
    to: Option<String>,
    bytes: u64,
    different: u64,
    first: Vec<Differs>,
    /// Host of the source, which is this host.
    source: String,
    /// Host of the copy.
    copy: String,
}

impl Found {
    fn json(&self, repaired: bool) -> serde_json::Value {
        let Found { bytes, different, first, source, copy, .. } = self;
        let repaired = repaired && *different > 0;
        json!({"bytes": bytes, "different": different, "first": first, "source": source, "copy": copy, "repaired": repaired})
    }

    fn text(&self, repair: bool) -> String {
        let Found { group, to, bytes, different, first, source, copy } = self;
        if *different == 0 {
            return format!("{group}: both sides are equal, {} compared", human(*bytes));
        }
        let (amount, all) = (human(*different), human(*bytes));
        let typed = |words| {
            let command = ShellCommand::new(words).operand(group).here();
            to.iter().fold(command, |command, to| command.option("--to", to))
        };
        let verify = typed("weft replica verify");
        let part = |part: &Differs| format!("{} at {} of {}", human(part.len), part.offset, part.volume);
        let parts: Vec<String> = first.iter().map(part).collect();
        let parts = parts.join(", ");
        match repair {
            true => format!(
                "{group}: {amount} of {all} differed and have been overwritten on {copy} with the data of {source} (first {parts}). \
                 Compare again: {verify}"
            ),
            false => format!(
                "{group}: {amount} of {all} differ between {source} (the source, this host) and its copy on {copy}; first {parts}.\n\
                 Nothing was changed. Find out which side is right before you overwrite one: NBD shows the source, and `weft replica \
                 test-failover {group}` on {copy} the copy.\n\
                 If the source is right, this overwrites these bytes on {copy} with those of {source}:\n\
                 \x20 {}\n\
                 If the copy is right, make it the source first, so that it overwrites those of {source}:\n\
                 \x20 {}\n\
                 \x20 {}     (on {copy})",
                verify.words("--repair --force"),
                typed("weft replica switch"),
                ShellCommand::new("weft replica verify").operand(group).words("--repair --force")
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(different: u64) -> Found {
        let part = |offset| Differs { volume: "vol1".into(), offset, len: 65536 };
        Found {
            group: "vol1".into(),
            to: None,
            bytes: 64 << 20,
            different,
            first: vec![part(196_608), part(720_896)],
            source: "alpha".into(),
            copy: "beta".into(),
        }
    }

    #[test]
    fn what_differs_is_told_with_both_ways_out_and_what_each_of_them_overwrites() {
        let text = found(1 << 20).text(false);
        assert!(text.contains("first 64 KiB at 196608 of vol1, 64 KiB at 720896 of vol1"), "{text}");
        let (ours, theirs) = text.split_once("If the copy is right").unwrap();
        assert!(ours.contains("overwrites these bytes on beta with those of alpha"), "{text}");
        assert!(ours.contains("weft replica verify vol1 --repair --force"), "{text}");
        assert!(theirs.contains("weft replica switch vol1\n"), "{text}");
        let switched = theirs.find("switch").unwrap();
        assert!(theirs.find("--repair --force     (on beta)").is_some_and(|at| at > switched), "{text}");
        let several = Found { to: Some("beta:vol1".into()), ..found(1) }.text(false);
        assert!(several.contains("verify vol1 --to beta:vol1 --repair --force"), "{several}");
        let address = Found { to: Some("[::1]:vol1".into()), ..found(1) }.text(false);
        assert!(address.contains("verify vol1 --to '[::1]:vol1' --repair --force"), "{address}");
    }

    #[test]
    fn a_repair_says_who_was_overwritten_and_equal_sides_have_nothing_to_type() {
        let text = found(1 << 20).text(true);
        assert!(text.contains("overwritten on beta with the data of alpha"), "{text}");
        let equal = Found { first: Vec::new(), ..found(0) };
        assert_eq!(equal.text(true), "vol1: both sides are equal, 64 MiB compared");
        assert_eq!(equal.json(true)["repaired"], false);
    }
}
