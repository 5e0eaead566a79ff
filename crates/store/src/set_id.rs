//! The set-user-id and set-group-id bits of files that are written to: the kernel takes them away, so that nobody lends what he
//! writes to the file's owner. It leaves them to who has CAP_FSETID, as root has, and a server that writes for others must not.
//!
//! Spec: capabilities(7), inode(7). Owns: nothing; capabilities are a thread's, and new threads have those of their parent.

use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

/// From now on the kernel takes the bits away, whatever this thread and those that it starts write. Without effect for who is
/// not root.
pub fn leave_to_the_kernel() -> std::io::Result<()> {
    let sets = capabilities(None)?;
    match sets.effective.contains(CapabilitySet::FSETID) {
        true => Ok(set_capabilities(None, without(sets))?),
        false => Ok(()),
    }
}

/// Makes a call that may set the bits, of a group that this process is not in as well.
pub(crate) fn allowed<T>(call: impl FnOnce() -> T) -> T {
    let _allowed = Allowed::here();
    call()
}

struct Allowed(CapabilitySets);

impl Allowed {
    /// None where it makes no difference: it is allowed already, or never.
    fn here() -> Option<Allowed> {
        let sets = capabilities(None).ok()?;
        let may = sets.permitted.contains(CapabilitySet::FSETID);
        if !may || sets.effective.contains(CapabilitySet::FSETID) {
            return None;
        }
        let effective = sets.effective | CapabilitySet::FSETID;
        set_capabilities(None, CapabilitySets { effective, ..sets }).ok()?;
        Some(Allowed(sets))
    }
}

impl Drop for Allowed {
    fn drop(&mut self) {
        set_capabilities(None, without(self.0)).expect("a thread may give up what it has");
    }
}

fn without(sets: CapabilitySets) -> CapabilitySets {
    CapabilitySets { effective: sets.effective - CapabilitySet::FSETID, ..sets }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_allowed_for_one_call() {
        // Of a thread of its own, because that is whose they are.
        let look = || capabilities(None).unwrap().effective.contains(CapabilitySet::FSETID);
        let story = move || {
            let root = capabilities(None).unwrap().permitted.contains(CapabilitySet::FSETID);
            leave_to_the_kernel().unwrap();
            assert!(!look());
            assert_eq!(allowed(look), root);
            assert!(!look());
            assert!(!std::thread::spawn(look).join().unwrap(), "a child has it no more than its parent");
        };
        std::thread::spawn(story).join().unwrap();
    }
}
