//! Commands of other programs, typed here: what to type instead.
//!
//! Owns: nothing. Does not: carry them out.

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// The sentence behind clap's error about a command that does not exist, where its name says what was meant.
pub(crate) fn advice(error: &clap::Error) -> Option<&'static str> {
    if error.kind() != ErrorKind::InvalidSubcommand {
        return None;
    }
    match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(name)) => instead(name),
        _ => None,
    }
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
        // What is wrong with a command that there is is clap's to say.
        assert_eq!(advice(&Args::try_parse_from(["weft", "cp"]).unwrap_err()), None);
    }
}
