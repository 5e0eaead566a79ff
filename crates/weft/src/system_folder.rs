//! Folders of the operating system, which no advice may give to another user.

use std::path::Path;

/// These, and all that is in them.
const WHOLE: [&str; 14] = [
    "/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/root", "/run",
    "/sbin", "/sys", "/usr",
];
/// These alone: what is in them belongs to services and people.
const ALONE: [&str; 13] = [
    "/",
    "/home",
    "/media",
    "/mnt",
    "/opt",
    "/srv",
    "/tmp",
    "/var",
    "/var/cache",
    "/var/lib",
    "/var/log",
    "/var/spool",
    "/var/tmp",
];

/// Whether a folder, by its absolute path without links, is the operating system's.
pub(crate) fn is_system_folder(path: &Path) -> bool {
    WHOLE.iter().any(|whole| path.starts_with(whole)) || ALONE.iter().any(|alone| path == Path::new(alone))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_services_and_people_are_not_the_systems() {
        for system in ["/", "/usr/share", "/usr", "/proc/1", "/root/x", "/home", "/var/lib", "/srv/"] {
            assert!(is_system_folder(Path::new(system)), "{system}");
        }
        for other in ["/home/a", "/srv/team", "/var/lib/weft", "/var/lib/weft/state", "/usrlocal", "/data"] {
            assert!(!is_system_folder(Path::new(other)), "{other}");
        }
    }
}
