//! Checks the keys for Macs: the model that they are told, and the shares for Time Machine.

use super::key::{self, Key};
use super::{ConfigError, Problem, ServeConfig, ShareConfig, ShareSource};

/// The longest model, in characters: announcements of it have little room.
const MAX_MODEL_CHARS: usize = 64;

/// Fails if Macs could not use what is configured for them.
pub(super) fn check(config: &ServeConfig) -> Result<(), ConfigError> {
    let model = &config.smb.mac_model;
    let printable = |b: u8| b.is_ascii_graphic() || b == b' ';
    if !(1..=MAX_MODEL_CHARS).contains(&model.len()) || !model.bytes().all(printable) {
        let why = "write 1 to 64 printable ASCII characters, such as \"Xserve\" or \"MacPro7,1\"";
        return Err(config.wrong(key::MAC_MODEL, Problem::Unfit(why)));
    }
    for share in config.shares.iter().filter(|share| share.time_machine) {
        if let Some(why) = unfit(config, share) {
            return Err(config.wrong(Key::of_share(&share.name, key::TIME_MACHINE), Problem::Unfit(why)));
        }
    }
    Ok(())
}

/// Why a share cannot be used by Time Machine.
fn unfit(config: &ServeConfig, share: &ShareConfig) -> Option<&'static str> {
    match &share.source {
        ShareSource::Ram { .. } => return Some("a ramdisk does not survive the server: back up to a folder"),
        ShareSource::Volumes => {
            return Some("this key is for folders, and this share contains the volumes");
        }
        ShareSource::Folder(_) => {}
    }
    if share.read_only {
        return Some("Macs cannot back up to a share that is read-only: remove read_only");
    }
    (!config.smb.macos)
        .then_some("Time Machine asks what smb.macos = false leaves unanswered: remove that key")
}
