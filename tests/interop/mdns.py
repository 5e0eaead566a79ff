"""Looks for services by mDNS with python-zeroconf, and prints a line of JSON for each that comes, changes or goes:
mdns.py INTERFACE-ADDRESS TYPE... ; with --claim NAME PORT, it is an SMB server of that name itself."""

import json
import sys
import threading

from zeroconf import IPVersion, ServiceBrowser, ServiceInfo, ServiceStateChange, Zeroconf


def main():
    own, *types = sys.argv[1:]
    zeroconf = Zeroconf(interfaces=[own], ip_version=IPVersion.V4Only)
    lock = threading.Lock()

    def say(**line):
        with lock:
            print(json.dumps(line), flush=True)

    if types[0] == "--claim":
        name, port = types[1:]
        info = ServiceInfo("_smb._tcp.local.", f"{name}._smb._tcp.local.", port=int(port), parsed_addresses=[own],
                           server=f"{name}.local.")
        zeroconf.register_service(info)
        say(event="claimed")
        sys.stdin.read()
        zeroconf.close()
        return

    def changed(zeroconf, service_type, name, state_change):
        if state_change is ServiceStateChange.Removed:
            return say(event="Removed", name=name)
        # Resolving asks, which needs another thread than that of the browser.
        threading.Thread(target=resolve, args=(service_type, name, state_change.name)).start()

    def resolve(service_type, name, event):
        info = zeroconf.get_service_info(service_type, name, 5000)
        if info is None:
            return say(event="unresolved", name=name)
        text = [f"{key.decode()}={(value or b'').decode()}" for key, value in info.properties.items()]
        say(event=event, name=name, port=info.port, server=info.server, addresses=info.parsed_addresses(), text=text)

    browser = ServiceBrowser(zeroconf, types, handlers=[changed])
    sys.stdin.read()
    browser.cancel()
    zeroconf.close()


main()
