//! Commands of other programs, typed here: what to type instead.
//!
//! Does not: carry them out.

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// The sentence behind clap's error about a command that does not exist, where its name says what was meant.
pub(crate) fn advice(error: &clap::Error) -> Option<&'static str> {
    if error.kind() != ErrorKind::InvalidSubcommand {
        return None;
    }
    let Some(ContextValue::String(name)) = error.get(ContextKind::InvalidSubcommand) else {
        return None;
    };
    match parent(error).as_str() {
        "" => instead(name),
        parent => instead_below(parent, name),
    }
}

/// The words between `weft` and the command that does not exist, from the usage that clap shows.
fn parent(error: &clap::Error) -> String {
    let Some(ContextValue::StyledStr(usage)) = error.get(ContextKind::Usage) else {
        return String::new();
    };
    let usage = usage.to_string();
    let words = usage.split_whitespace().skip_while(|word| *word != "weft").skip(1);
    let words: Vec<&str> = words.take_while(|word| !word.starts_with(['[', '<'])).collect();
    words.join(" ")
}

fn instead_below(parent: &str, name: &str) -> Option<&'static str> {
    Some(match (parent, name.to_lowercase().as_str()) {
        ("replica", "list" | "ls" | "show" | "info") => {
            "replicated volumes are listed by `weft replica status`"
        }
        ("replica", "delete" | "rm" | "stop" | "end") => "replication ends by `weft replica remove GROUP`",
        ("replica", "failover" | "promote" | "takeover") => {
            "a copy takes the place of a lost source by `weft replica switch GROUP --failover`, typed where the copy is"
        }
        ("replica", "pause") => "nothing is sent for now after `weft replica suspend GROUP`",
        ("volume", "ls" | "show" | "status") => "volumes are listed by `weft volume list`",
        ("volume", "rm" | "delete") => "volumes are forgotten by `weft volume remove NAME`; their file stays",
        ("volume", "grow" | "extend") => "the size is changed by `weft volume resize`",
        ("volume", "add" | "new") => "volumes are made by `weft volume create NAME --size 10G --file PATH`",
        _ => return None,
    })
}

fn instead(name: &str) -> Option<&'static str> {
    Some(match name.to_lowercase().as_str() {
        "get" | "copy" | "download" | "upload" | "fetch" | "mget" | "mput" | "scp" => {
            "files are copied there and back by `weft cp FROM TO`: weft cp smb://USER@HOST/SHARE/FILE ."
        }
        "del" | "rm" | "delete" | "remove" | "unlink" | "rmdir" | "mkdir" | "md" | "mv" | "move"
        | "rename" => {
            "weft copies and lists: smbclient //HOST/SHARE -U USER -c 'del FILE' (rename, mkdir) changes names; weft sync --delete makes folders equal"
        }
        "dir" | "list" | "shares" => "names are listed by `weft ls`: weft ls smb://USER@HOST/SHARE",
        "mount" => "the kernel mounts: mount -t cifs -o port=4450,username=USER //HOST/SHARE /mnt",
        "start" | "server" | "share" | "export" => "folders are served by `weft serve DIR --user NAME`",
        "rsync" | "mirror" => "folders are made equal by `weft sync FROM TO`",
        "ping" | "perf" => "that is `weft rdma ping` and `weft rdma perf`",
        "ps" | "clients" | "sessions" => "that is `weft status`",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::Args;

    #[test]
    fn names_of_other_programs_lead_to_ours() {
        let says = |name: &str| advice(&Args::try_parse_from(["weft", name, "x"]).unwrap_err());
        assert!(says("get").unwrap().contains("weft cp"));
        assert!(says("DEL").unwrap().contains("smbclient"));
        assert_eq!(says("foo"), None);
        let below =
            |parent: &str, name: &str| advice(&Args::try_parse_from(["weft", parent, name]).unwrap_err());
        assert!(below("replica", "list").unwrap().contains("weft replica status"));
        assert!(below("volume", "ls").unwrap().contains("weft volume list"));
        // What a word means to `weft` it does not mean to a command below.
        assert_eq!(below("rdma", "list"), None);
        // What is wrong with a command that there is is clap's to say.
        assert_eq!(advice(&Args::try_parse_from(["weft", "cp"]).unwrap_err()), None);
    }
}
