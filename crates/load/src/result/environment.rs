//! The environment of a measurement: names and versions, as the system reports them. A value that it does not report
//! is absent.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::cpu;

/// One host of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Environment {
    /// Its role: "client", "server", "client and server".
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub role: String,
    /// Processor name.
    pub processor: String,
    /// Its nominal frequency, which converts CPU time to cycles.
    pub hz: f64,
    /// The origin of "cycles" in this result.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cycles: String,
    /// Number of processors.
    pub processors: usize,
    /// Memory of the host in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Whether a hypervisor is reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub virtual_machine: Option<bool>,
    /// Kernel release.
    pub kernel: String,
    /// "Debian GNU/Linux 12 (bookworm)".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// TCP congestion control of the connections.
    pub congestion_control: String,
    /// "io_uring" or "epoll".
    pub driver: String,
    /// The network interface of the connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// Its MTU in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// Weft's version.
    pub version: String,
    /// Versions of other participants: "rdma-core", "agent".
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub versions: BTreeMap<String, String>,
    /// The command line.
    pub command: String,
}

impl Environment {
    /// This machine.
    pub fn here(driver: &str, congestion_control: &str) -> std::io::Result<Environment> {
        let (processor, hz) = cpu::processor()?;
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease")?.trim().to_owned();
        Ok(Environment {
            role: "client and server".to_owned(),
            processor,
            hz,
            cycles: cpu::CYCLES.to_owned(),
            processors: std::thread::available_parallelism()?.get(),
            memory_bytes: memory(&std::fs::read_to_string("/proc/meminfo").unwrap_or_default()),
            virtual_machine: std::fs::read_to_string("/proc/cpuinfo")
                .ok()
                .and_then(|text| text.lines().find(|l| l.starts_with("flags")).map(has_hypervisor)),
            kernel,
            system: std::fs::read_to_string("/etc/os-release").ok().and_then(|text| system(&text)),
            congestion_control: congestion_control.to_owned(),
            driver: driver.to_owned(),
            interface: None,
            mtu: None,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            versions: BTreeMap::new(),
            command: std::env::args().map(quoted).collect::<Vec<_>>().join(" "),
        })
    }

    /// Sets the network interface of the connections, by name and MTU. The MTU of an unknown interface is absent.
    pub fn through(mut self, interface: &str) -> Environment {
        let path = format!("/sys/class/net/{interface}/mtu");
        self.mtu = std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok());
        self.interface = Some(interface.to_owned());
        self
    }
}

fn memory(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

fn has_hypervisor(flags: &str) -> bool {
    flags.split_whitespace().any(|flag| flag == "hypervisor")
}

fn system(os_release: &str) -> Option<String> {
    let value = os_release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
    Some(value.trim_matches('"').to_owned())
}

/// An argument, quoted for a shell.
fn quoted(argument: String) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    if !argument.is_empty() && argument.chars().all(plain) {
        argument
    } else {
        format!("'{}'", argument.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_can_be_pasted_back() {
        assert_eq!(quoted("--size=8K".into()), "--size=8K");
        assert_eq!(quoted("smb://a@h/s?x=1&y".into()), "'smb://a@h/s?x=1&y'");
        assert_eq!(quoted("it's".into()), r"'it'\''s'");
        assert_eq!(quoted(String::new()), "''");
    }

    #[test]
    fn the_system_names_itself() {
        assert_eq!(memory("MemFree: 1 kB\nMemTotal:       24 kB\n"), Some(24576));
        assert_eq!(memory("nothing"), None);
        assert_eq!(system("ID=x\nPRETTY_NAME=\"Debian 12\"\n").as_deref(), Some("Debian 12"));
        assert!(has_hypervisor("flags : fpu hypervisor sse") && !has_hypervisor("flags : fpu"));
        let here = Environment::here("epoll", "reno").unwrap().through("lo");
        assert!(here.mtu.is_some_and(|mtu| mtu >= 1500), "{here:?}");
    }
}
