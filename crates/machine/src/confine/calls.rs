//! seccomp: system calls that no server needs fail with EPERM, and the kernel logs each (SECCOMP_FILTER_FLAG_LOG).
//!
//! The list names what is forbidden. A list of what is allowed would forbid more, but the C library, the directory services
//! and libraries of devices that it loads decide which calls this process makes, and a new version of one of them would end a
//! server that works. The forbidden calls are those that systemd leaves out of `@system-service`, as far as a process without
//! children can do harm by them.
//!
//! A filter costs the calls that it allows whatever their arguments are next to nothing: the kernel keeps these in a bitmap
//! (Linux 5.11). Only calls whose arguments are compared run the program, so none of those is frequent.

use std::collections::BTreeMap;
use std::io;

use libc::c_long;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, sock_filter,
};

/// Whether the kernel's keyrings stay usable. Kerberos may keep tickets in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keyrings {
    /// They do.
    Usable,
    /// They do not.
    Refused,
}

/// Refused whatever the arguments are.
const REFUSED: &[c_long] = &[
    // Other programs.
    libc::SYS_execve,
    libc::SYS_execveat,
    // Other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_process_mrelease,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_move_pages,
    libc::SYS_migrate_pages,
    // Mounts, and other roots.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_setns,
    // Files by numbers instead of paths.
    libc::SYS_open_by_handle_at,
    libc::SYS_fanotify_init,
    libc::SYS_quotactl,
    // The kernel itself.
    libc::SYS_kexec_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_syslog,
    libc::SYS_acct,
    libc::SYS_personality,
    libc::SYS_remap_file_pages,
    // The host.
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_vhangup,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_kexec_file_load,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_uselib,
];

/// Refused unless [`Keyrings::Usable`].
const OF_KEYRINGS: [c_long; 3] = [libc::SYS_add_key, libc::SYS_request_key, libc::SYS_keyctl];

/// Flags of clone(2) and unshare(2) that make a namespace. A thread may still leave the umask of the others (`CLONE_FS`).
const NAMESPACES: [libc::c_int; 7] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
];
/// The same for unshare(2); in clone(2) this bit belongs to the signal.
const NEW_TIME: libc::c_int = 0x80;

/// The families of sockets that a server has, with the directory services and libraries that it loads.
const FAMILIES: [libc::c_int; 4] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];

/// The commands that type into a terminal, where a shell would read it.
const TYPING: [u32; 2] = [0x5412, 0x541C]; // TIOCSTI, TIOCLINUX

/// Refuses system calls that no server needs, in all threads of this process. Returns how many.
///
/// # Errors
/// Nothing is refused.
pub fn to_calls(keyrings: Keyrings) -> io::Result<usize> {
    install(keyrings, libc::SECCOMP_FILTER_FLAG_TSYNC)
}

/// The same with these flags.
pub(super) fn install(keyrings: Keyrings, flags: libc::c_ulong) -> io::Result<usize> {
    let rules = rules(keyrings).map_err(io::Error::other)?;
    let number = rules.len() + 1;
    let refused = compile(rules, libc::EPERM).map_err(io::Error::other)?;
    // The flags of clone3(2) are in memory, which a filter cannot read. Without it, the C library uses clone(2).
    let absent =
        compile(BTreeMap::from([(libc::SYS_clone3, vec![])]), libc::ENOSYS).map_err(io::Error::other)?;
    rustix::thread::set_no_new_privs(true)?;
    // Not logged: every new thread tries it.
    load(&absent, flags)?;
    load(&[other_numbers(), refused].concat(), flags | libc::SECCOMP_FILTER_FLAG_LOG)?;
    Ok(number)
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

fn rules(keyrings: Keyrings) -> Result<Rules, BackendError> {
    let mut rules: Rules = REFUSED.iter().map(|call| (*call, Vec::new())).collect();
    if keyrings == Keyrings::Refused {
        rules.extend(OF_KEYRINGS.map(|call| (call, Vec::new())));
    }
    let flag = |bit: libc::c_int| {
        let bit = u64::from(bit.cast_unsigned());
        rule([condition(0, SeccompCmpOp::MaskedEq(bit), bit)])
    };
    let clone = NAMESPACES.map(flag);
    rules.insert(libc::SYS_clone, clone.into_iter().collect::<Result<_, _>>()?);
    let unshare = NAMESPACES.into_iter().chain([NEW_TIME]).map(flag);
    rules.insert(libc::SYS_unshare, unshare.collect::<Result<_, _>>()?);
    let other = FAMILIES.map(|family| condition(0, SeccompCmpOp::Ne, u64::from(family.cast_unsigned())));
    rules.insert(libc::SYS_socket, vec![rule(other)?]);
    let typing = TYPING.map(|command| rule([condition(1, SeccompCmpOp::Eq, command.into())]));
    rules.insert(libc::SYS_ioctl, typing.into_iter().collect::<Result<_, _>>()?);
    Ok(rules)
}

/// What an argument is compared with, in its lower half: the kernel takes no more of these.
fn condition(argument: u8, compared: SeccompCmpOp, value: u64) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, compared, value)
}

/// Holds if all conditions do.
fn rule<const N: usize>(
    conditions: [Result<SeccompCondition, BackendError>; N],
) -> Result<SeccompRule, BackendError> {
    SeccompRule::new(conditions.into_iter().collect::<Result<_, _>>()?)
}

/// A program that answers these calls with an error and allows all others. It ends a process that calls by the numbers of
/// another architecture (int 0x80).
fn compile(rules: Rules, errno: libc::c_int) -> Result<BpfProgram, BackendError> {
    let answer = SeccompAction::Errno(errno.cast_unsigned());
    SeccompFilter::new(rules, SeccompAction::Allow, answer, std::env::consts::ARCH.try_into()?)?.try_into()
}

/// Refuses the second set of numbers that processors of x86-64 have (x32), by which a call would escape the list. A tracer
/// skips a call by number -1.
fn other_numbers() -> BpfProgram {
    const X32: u32 = 0x4000_0000; // __X32_SYSCALL_BIT
    let line = |code: u32, jt: u8, jf: u8, k: u32| sock_filter { code: code as u16, jt, jf, k };
    match cfg!(target_arch = "x86_64") {
        true => vec![
            line(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
            line(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, 0, 2, X32),
            line(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, 0, u32::MAX),
            line(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned()),
        ],
        false => Vec::new(),
    }
}

fn load(program: &[sock_filter], flags: libc::c_ulong) -> io::Result<()> {
    #[repr(C)]
    struct Program {
        len: libc::c_ushort,
        filter: *const sock_filter,
    }
    let len = libc::c_ushort::try_from(program.len()).map_err(io::Error::other)?;
    let program = Program { len, filter: program.as_ptr() };
    // SAFETY: seccomp(2) copies the program, whose length is that of the slice, and keeps no reference to it.
    let done = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::c_ulong::from(libc::SECCOMP_SET_MODE_FILTER),
            flags,
            &raw const program,
        )
    };
    match done {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        thread => Err(io::Error::other(format!("thread {thread} has filters of its own"))),
    }
}
