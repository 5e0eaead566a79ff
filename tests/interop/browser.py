"""A headless Chromium, driven over WebDriver by the standard library alone: opens a page, runs scripts in it, takes
pictures."""
import base64
import json
import os
import re
import shutil
import subprocess
import tempfile
import urllib.request

POOR_TEXT = """
const parse = c => c.match(/[\\d.]+/g).map(Number);
const light = c => { const [r, g, b] = parse(c).map(v => { v /= 255; return v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; });
                     return .2126 * r + .7152 * g + .0722 * b; };
const ground = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
                      if (c !== 'rgba(0, 0, 0, 0)' && c !== 'transparent') return c; } return 'rgb(255, 255, 255)'; };
const poor = [];
for (const e of document.querySelectorAll('h1,h2,h3,p,li,td,th,dt,dd,summary,figcaption,text,pre,i,span')) {
    if (!e.textContent.trim() || e.closest('details:not([open])') || !e.checkVisibility()) continue;
    const style = getComputedStyle(e);
    const ink = e.tagName === 'text' ? style.fill : style.color;
    const [a, b] = [light(ink), light(ground(e))];
    const contrast = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    const size = e.tagName === 'text' ? parseFloat(style.fontSize) * e.getScreenCTM().a : parseFloat(style.fontSize);
    if (contrast < 4.5 || size < 9) poor.push([e.tagName, e.textContent.slice(0, 40), contrast.toFixed(2), size.toFixed(1)]);
}
return poor.slice(0, 10);"""


def missing():
    """The reason to skip a test if something is not installed, else None."""
    for command in ("chromium", "chromedriver"):
        if not shutil.which(command):
            return f"{command} is not installed"
    return None


class Browser:
    """One headless browser; a context manager."""

    def __init__(self):
        self.home = tempfile.TemporaryDirectory(prefix="weft-browser-")
        env = {**os.environ, "HOME": self.home.name}
        self.url = f"http://127.0.0.1:{self.start(env)}"
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
                     f"--user-data-dir={self.home.name}/profile"]
        wanted = {"alwaysMatch": {
            "browserName": "chrome",
            "goog:chromeOptions": {"binary": shutil.which("chromium"), "args": arguments},
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}}
        try:
            session = self.call("POST", "/session", {"capabilities": wanted})
        except BaseException:
            self.stop()
            raise
        self.url += "/session/" + session["sessionId"]

    def start(self, env):
        """Starts the driver; returns its port."""
        for _ in range(5):
            self.driver = subprocess.Popen(
                ["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
            said = ""
            for line in self.driver.stdout:
                said += line
                if port := re.search(r"successfully on port (\d+)", line):
                    return port[1]
            self.driver.stdout.close()
            self.driver.wait()
            # The driver takes any port that is free in IPv4, and exits if that port is taken in IPv6.
            if "port not available" not in said:
                break
        self.home.cleanup()
        raise RuntimeError(f"chromedriver ended at once: {said}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            self.call("DELETE", "")
        finally:
            self.stop()

    def stop(self):
        self.driver.terminate()
        self.driver.wait(10)
        self.driver.stdout.close()
        self.home.cleanup()

    def call(self, method, path, body=None):
        data = json.dumps(body if body is not None else {}).encode() if method == "POST" else None
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"}, method=method)
        # The driver runs on this host, so bypass any proxy.
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
            return json.load(answer)["value"]

    def devtools(self, command, **parameters):
        return self.call("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def open(self, path, scheme, width, height=900):
        """Opens a file or a URL in a colour scheme ("light", "dark") and a width in CSS pixels."""
        self.devtools("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        # Discard what the browser has loaded for itself.
        self.console()
        self.requests()
        self.call("POST", "/url", {"url": str(path) if "://" in str(path) else f"file://{path}"})

    def ask(self, script):
        """The value of a JavaScript function body."""
        return self.call("POST", "/execute/sync", {"script": script, "args": []})

    def console(self):
        """Lines of the console since the last call."""
        return [line["message"] for line in self.call("POST", "/se/log", {"type": "browser"})]

    def requests(self):
        """URLs requested since the last call. A new tab of the browser's own may still be loading at the same time."""
        events = [json.loads(line["message"])["message"] for line in self.call("POST", "/se/log", {"type": "performance"})]
        sent = [event["params"] for event in events if event["method"] == "Network.requestWillBeSent"]
        return [one["request"]["url"] for one in sent if not one["documentURL"].startswith("chrome://")]

    def poor_text(self):
        """Visible text with too little contrast (WCAG: 4.5) or less than 9 pixels high: tag, text, contrast, size."""
        return self.ask(POOR_TEXT)

    def screenshot(self, path, whole=True):
        """A picture of the page, for people."""
        picture = self.devtools("Page.captureScreenshot", captureBeyondViewport=whole, **({"clip": self.whole()} if whole else {}))
        with open(path, "wb") as out:
            out.write(base64.b64decode(picture["data"]))

    def whole(self):
        size = self.devtools("Page.getLayoutMetrics")["cssContentSize"]
        return {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
