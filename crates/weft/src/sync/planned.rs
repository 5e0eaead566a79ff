//! Prints what a run would do: `weft sync -n`.

use serde_json::{Value, json};

use super::Work;
use super::failed::{Failed, Failures};
use crate::Failure;
use crate::out::name;

/// If something cannot be copied, nothing is deleted: see `Ends::carry_out`.
fn deletes<'w>(failed: &Failures, work: &'w Work<'_>) -> (&'w [&'w str], &'w [(&'w str, bool)]) {
    if failed.is_empty() { (&work.unfinished, &work.extra) } else { (&[], &[]) }
}

/// The plan as JSON.
pub(super) fn to_json(failed: &Failures, work: &Work<'_>, left_out: &[String], transport: &str) -> Value {
    let (unfinished, extra) = deletes(failed, work);
    let copy: Vec<_> = work.files.iter().map(|(path, size)| json!({"path": path, "bytes": size})).collect();
    let unfinished = unfinished.iter().map(|path| json!({"path": path, "folder": false, "unfinished": true}));
    let extra =
        extra.iter().map(|(path, folder)| json!({"path": path, "folder": folder, "unfinished": false}));
    let delete: Vec<_> = unfinished.chain(extra).collect();
    let failed: Vec<_> = failed.iter().map(Failed::to_json).collect();
    json!({
        "dry_run": true, "make": work.folders, "copy": copy, "bytes": work.bytes(), "delete": delete,
        "unchanged": work.unchanged, "failed": failed, "left_out": left_out, "transport": transport,
    })
}

/// Prints the plan for people.
pub(super) fn print(failed: &Failures, work: &Work<'_>) -> Result<(), Failure> {
    for failed in failed.iter() {
        say!("cannot     {failed}")?;
    }
    for path in &work.folders {
        say!("make       {}/", name(path))?;
    }
    for (path, size) in &work.files {
        say!("copy       {} ({size} bytes)", name(path))?;
    }
    let (unfinished, extra) = deletes(failed, work);
    let has_deletions = !work.extra.is_empty() || !work.unfinished.is_empty();
    if !failed.is_empty() && has_deletions {
        say!("delete     nothing, because not everything can be copied")?;
    }
    for path in unfinished {
        say!("delete     {}, unless a command is using it", name(path))?;
    }
    for (path, folder) in extra {
        say!("delete     {}{}", name(path), if *folder { "/" } else { "" })?;
    }
    say!("unchanged  {} files", work.unchanged)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::failed::Places;
    use crate::url::Url;

    /// The plan was printed for people, whatever the options.
    #[test]
    fn a_program_reads_what_would_be_done() {
        let mut work = Work {
            folders: vec!["d"],
            files: vec![("a\nb", 3), ("d/c", 4)],
            extra: vec![("x/y", false), ("x", true)],
            unfinished: vec![".z.weft-partial"],
            unchanged: 5,
            ..Work::default()
        };
        let mut failed = Failures::default();
        let left_out = ["link".to_owned()];
        assert_eq!(
            to_json(&failed, &work, &left_out, "tcp"),
            json!({
                "dry_run": true, "make": ["d"], "bytes": 7, "unchanged": 5, "failed": [], "left_out": ["link"],
                "copy": [{"path": "a\nb", "bytes": 3}, {"path": "d/c", "bytes": 4}], "transport": "tcp",
                "delete": [
                    {"path": ".z.weft-partial", "folder": false, "unfinished": true},
                    {"path": "x/y", "folder": false, "unfinished": false},
                    {"path": "x", "folder": true, "unfinished": false},
                ],
            })
        );
        let url = Url::parse("smb://alice@nas/data/").unwrap().unwrap();
        let places = Places { url, there: String::new(), here: "/mnt".into(), up: true };
        failed.push(places.at_host("secret", "permission denied")).unwrap();
        work.files.clear();
        let told = to_json(&failed, &work, &left_out, "tcp");
        assert_eq!(told["delete"], json!([]), "nothing is deleted where something failed");
        assert_eq!(told["failed"][0]["path"], "secret");
    }
}
