//! Suggestions for commands of other programs that are typed to `weft`.

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// A suggestion to print after clap's error about an unknown command, if its name shows the intention.
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

/// The words between `weft` and the unknown command, from the usage that clap shows.
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
        ("replica", "list" | "ls" | "show" | "info") => "to list replicated volumes: `weft replica status`",
        ("replica", "delete" | "rm" | "stop" | "end") => "to end replication: `weft replica remove GROUP`",
        ("replica", "failover" | "promote" | "takeover") => {
            "to replace a lost source with its copy: `weft replica switch GROUP --failover`, on the host with the copy"
        }
        ("share", "change" | "modify" | "edit" | "update") => {
            "to change a share: `weft share set NAME`, for example weft share set team --quota 10G"
        }
        ("share", "ls" | "show") => "to list shares: `weft share list`",
        ("share", "rm" | "delete" | "del") => "to remove a share: `weft share remove NAME`; its files stay",
        ("user", "rm" | "delete" | "del") => "to remove a user: `weft user remove NAME`",
        ("user", "ls" | "show") => "to list users: `weft user list`",
        ("user", "password" | "set") => "to change a password: `weft user passwd NAME`",
        ("replica", "pause") => "to pause replication: `weft replica suspend GROUP`",
        ("volume", "ls" | "show" | "status") => "to list volumes: `weft volume list`",
        ("volume", "rm" | "delete") => "to remove a volume: `weft volume remove NAME`; its file stays",
        ("volume", "grow" | "extend") => "to change the size: `weft volume resize NAME SIZE`",
        ("volume", "add" | "new") => "to create a volume: `weft volume create NAME --size 10G --file PATH`",
        _ => return None,
    })
}

fn instead(name: &str) -> Option<&'static str> {
    Some(match name.to_lowercase().as_str() {
        "get" | "copy" | "download" | "upload" | "fetch" | "mget" | "mput" | "scp" => {
            "to copy files: `weft cp FROM TO`, for example weft cp smb://USER@HOST/SHARE/FILE ."
        }
        "del" | "rm" | "delete" | "remove" | "unlink" | "rmdir" | "mkdir" | "md" | "mv" | "move"
        | "rename" => {
            "no command changes names or makes folders; use another program: smbclient //HOST/SHARE -U USER -c 'del FILE' (or rename, mkdir); to make folders equal: weft sync --delete"
        }
        "dir" | "list" | "shares" => "to list files: `weft ls smb://USER@HOST/SHARE`",
        "mount" => "mounting is up to the kernel: mount -t cifs -o port=4450,username=USER //HOST/SHARE /mnt",
        "start" | "server" | "share" | "export" => "to serve folders: `weft serve DIR --user NAME`",
        "rsync" | "mirror" => "to make folders equal: `weft sync FROM TO`",
        "ping" | "perf" => "use `weft rdma ping` or `weft rdma perf`",
        "ps" | "clients" | "sessions" => "use `weft status`",
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
        // Suggestions for `weft` do not apply to its subcommands.
        assert_eq!(below("rdma", "list"), None);
        // Clap reports the errors of existing commands.
        assert_eq!(advice(&Args::try_parse_from(["weft", "cp"]).unwrap_err()), None);
    }
}
