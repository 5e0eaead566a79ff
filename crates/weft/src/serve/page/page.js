"use strict";
// Draws what /api/v1/status, /api/v1/latency and /api/v1/slow answer. Names of users, shares and clients come from outside: they become
// text nodes and never markup. The policy of this page (Trusted Types) enforces that.

const STATUS_EVERY_MS = 3000;
const LATENCY_EVERY_MS = 15000;
const ANSWER_WITHIN_MS = 10000;
const LONGEST_NAME = 200;
const SLOW_ROWS = 20;
const SVG = "http://www.w3.org/2000/svg";

const at = (id) => document.getElementById(id);
let token = null;
// Without a token every user of the host may ask, and nobody learns names.
const reduced = document.body.dataset.shows === "without-names";
let paused = false;
let status = null;
let latency = null;
let slow = null;
let before = null;

// ---- Text

// What a terminal or a browser would act on, and what nobody sees: it is shown as a sign of its own.
const UNSEEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}]/gu;

// A name from outside.
function shown(name) {
  const text = shownText(name);
  return text.length > LONGEST_NAME ? text.slice(0, LONGEST_NAME) + "…" : text;
}

function bytes(count) {
  let unit = 0;
  let n = count;
  while (n >= 1024 && unit < 5) { n /= 1024; unit += 1; }
  return `${unit === 0 || n >= 100 ? Math.round(n) : n.toFixed(1)} ${["B", "KiB", "MiB", "GiB", "TiB", "PiB"][unit]}`;
}

function time(seconds) {
  if (!Number.isFinite(seconds)) return "more";
  if (seconds < 0.001) return `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 1) return `${Number((seconds * 1e3).toPrecision(3))} ms`;
  return `${Number(seconds.toPrecision(3))} s`;
}

function age(seconds) {
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor(seconds / 60) % 60} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor(seconds / 3600) % 24} h`;
}

const counted = (n, one, many) => `${n} ${n === 1 ? one : many ?? one + "s"}`;

function percent(part, all) {
  if (all === 0) return "0 %";
  // 99.96 % is not all.
  return `${Math.floor(1000 * part / all) / 10} %`;
}

// ---- Elements

function element(name, text, kind) {
  const node = document.createElement(name);
  if (text !== undefined) node.textContent = text;
  if (kind) node.className = kind;
  return node;
}

function put(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// Elements stay as long as their key, so that a reader's selection and focus stay, too.
function keyed(parent, items, keyOf, make, fill) {
  const old = new Map();
  for (const node of parent.children) old.set(node.dataset.key, node);
  const seen = new Map();
  let next = parent.firstElementChild;
  for (const item of items) {
    const name = keyOf(item);
    const times = seen.get(name) ?? 0;
    seen.set(name, times + 1);
    const key = `${times}:${name}`;
    let node = old.get(key);
    if (node) {
      old.delete(key);
    } else {
      node = make(item);
      node.dataset.key = key;
    }
    fill(node, item);
    if (node === next) {
      next = next.nextElementSibling;
    } else {
      parent.insertBefore(node, next);
    }
  }
  for (const node of old.values()) node.remove();
}

// A table in a region that the keyboard can scroll. Each column: [title, value or function that fills the cell, class].
// `more` rows are not in the answer, and `all` are in it, of which a filter may have left `rows`.
function table(box, label, columns, rows, keyOf, more, none, all = rows.length, shower = "weft status") {
  if (!box.firstElementChild) {
    box.tabIndex = 0;
    box.setAttribute("role", "region");
    box.setAttribute("aria-label", label);
    // The roles are spelled out, because at phone width the table is drawn as blocks.
    const made = element("table");
    made.setAttribute("role", "table");
    made.append(element("caption"), element("thead"), element("tbody"));
    for (const group of [made.tHead, made.tBodies[0]]) group.setAttribute("role", "rowgroup");
    const head = element("tr");
    head.setAttribute("role", "row");
    for (const [title, , kind] of columns) {
      const cell = element("th", title, kind);
      cell.scope = "col";
      cell.setAttribute("role", "columnheader");
      head.append(cell);
    }
    made.tHead.append(head);
    box.append(made);
  }
  const made = box.firstElementChild;
  const found = rows.length === all ? `${all} shown` : `${rows.length} of ${all} match the filter`;
  const left = more > 0 ? `${found}, ${more} more are left out; ${shower} shows all` : rows.length === 0 ? none : "";
  put(made.caption, left);
  made.caption.hidden = left === "";
  made.tHead.hidden = rows.length === 0;
  const make = () => {
    const row = element("tr");
    row.setAttribute("role", "row");
    for (const [title, , kind] of columns) {
      const cell = element("td", undefined, kind);
      cell.setAttribute("role", "cell");
      cell.dataset.label = title;
      row.append(cell);
    }
    return row;
  };
  keyed(made.tBodies[0], rows, keyOf, make, (row, item) => {
    columns.forEach(([, value], i) => {
      const cell = row.cells[i];
      const found = value(item);
      if (found instanceof Node) {
        if (cell.dataset.was !== found.dataset.was || !cell.firstElementChild) {
          cell.replaceChildren(found);
          cell.dataset.was = found.dataset.was;
        }
      } else {
        put(cell, String(found));
      }
    });
  });
}

// A bar below a text that says the same.
function bar(parts, label) {
  const node = element("div", undefined, "bar small");
  fillBar(node, parts, label);
  node.removeAttribute("role");
  node.removeAttribute("aria-label");
  node.setAttribute("aria-hidden", "true");
  return node;
}

// What to do. What can be pasted as it is stands as code; the rest are words with commands in them.
function fillRemedy(box, text) {
  box.hidden = !text;
  if (!text || box.dataset.was === text) return;
  box.replaceChildren("Try: ", element(/^weft [^,;()]*$/.test(text) ? "code" : "span", shownText(text)));
  box.dataset.was = text;
}

function fillBar(node, parts, label) {
  node.setAttribute("role", "img");
  node.setAttribute("aria-label", label);
  node.title = label;
  node.dataset.was = label;
  const all = parts.reduce((sum, [, n]) => sum + n, 0);
  keyed(node, parts.filter(([, n]) => n > 0), ([kind]) => kind, ([kind]) => element("span", undefined, kind), (span, [, n]) => {
    span.style.width = `${100 * n / all}%`;
  });
}

// ---- RDMA

const STATES = {
  "used": "RDMA",
  "in-messages": "RDMA, data in messages",
  "beside": "TCP beside RDMA",
  "not-used": "TCP, not RDMA",
  "not-offered": "no RDMA offered",
  "not-possible": "no RDMA possible",
  "unknown": "not known yet",
};
const ORDER = ["not-used", "in-messages", "not-offered", "used", "beside", "not-possible", "unknown"];

const byRdma = (t) => t.rdma_written_bytes + t.rdma_read_bytes + t.rdma_by_client_bytes;
const inMessages = (t) => t.sent_bytes + t.received_bytes;
const isRdma = (transport) => transport === "smb-direct" || transport === "rpc-rdma";

function moved(connection) {
  const nbd = connection.nbd;
  if (nbd) return { rdma: 0, inline: nbd.read_bytes + nbd.written_bytes };
  return { rdma: byRdma(connection.traffic), inline: inMessages(connection.traffic) };
}

function badge(state) {
  const node = element("span", STATES[state] ?? shown(state), `badge ${Object.hasOwn(STATES, state) ? state : "unknown"}`);
  node.dataset.was = state;
  return node;
}

function drawRdma() {
  const sums = { rdma: 0, inline: 0, tcp: 0 };
  for (const kind of status.kinds) {
    sums.rdma += byRdma(kind.traffic);
    sums[isRdma(kind.transport) ? "inline" : "tcp"] += inMessages(kind.traffic);
  }
  const open = status.kinds.reduce((sum, kind) => sum + kind.open, 0);
  const fallen = status.kinds.reduce((sum, kind) => sum + kind.without_rdma, 0);
  const onRdma = status.kinds.reduce((sum, kind) => sum + (isRdma(kind.transport) ? kind.open : 0), 0);
  const inside = status.connections.filter((one) => one.rdma.state === "in-messages").length;
  // The answer has the first connections only, and the numbers by kind are of all.
  const cut = status.more.connections;
  put(at("cut"), `The reasons are those of ${status.connections.length} of ${status.connections.length + cut} connections, first of those without RDMA; weft status shows all.`);
  at("cut").hidden = cut === 0;
  const verdict = at("verdict");
  let said;
  let mood = "muted";
  if (status.providers.length === 0) {
    said = "No: this server offers no RDMA.";
  } else if (open === 0) {
    said = `Nobody is connected. RDMA is offered by ${status.providers.map(shown).join(" and ")}.`;
  } else if (fallen > 0) {
    said = `${onRdma === 0 ? "No" : "Not by all"}: ${counted(fallen, "connection")} of ${open} could use RDMA and ${fallen === 1 ? "does" : "do"} not.`;
    mood = "care";
  } else if (inside > 0) {
    said = `Partly: ${cut > 0 ? "at least " : ""}${counted(inside, "RDMA connection")} ${inside === 1 ? "moves" : "move"} most data in messages.`;
    mood = "care";
  } else if (onRdma > 0) {
    said = `Yes, by every connection that can: ${onRdma} of ${open}.`;
    mood = "good";
  } else {
    said = "No connection could use it.";
  }
  put(verdict, said);
  verdict.className = `verdict ${mood}`;
  const all = sums.rdma + sums.inline + sums.tcp;
  const texts = {
    rdma: `by RDMA: ${bytes(sums.rdma)} (${percent(sums.rdma, all)})`,
    inline: `in messages of RDMA connections: ${bytes(sums.inline)} (${percent(sums.inline, all)})`,
    tcp: `over TCP, UDP and Unix sockets: ${bytes(sums.tcp)} (${percent(sums.tcp, all)})`,
  };
  fillBar(at("parts"), Object.entries(sums), `Bytes since the start: ${Object.values(texts).join(", ")}`);
  for (const [kind, text] of Object.entries(texts)) put(at(`key-${kind}`), text);

  const groups = new Map();
  for (const one of status.connections) {
    const { state, reason, remedy } = one.rdma;
    // Percentages differ from connection to connection and from second to second; the table has them.
    const name = state === "used" || state === "in-messages" ? `${state} ${one.transport} ${one.provider} ${remedy}` : `${state} ${reason} ${remedy}`;
    const group = groups.get(name) ?? { name, state, reason, remedy, peers: [] };
    group.peers.push(one);
    groups.set(name, group);
  }
  const order = (group) => ORDER.indexOf(group.state);
  const list = [...groups.values()].sort((a, b) => order(a) - order(b) || b.peers.length - a.peers.length);
  const make = (group) => {
    const item = element("li", undefined, Object.hasOwn(STATES, group.state) ? group.state : "unknown");
    item.append(element("p"), element("p"), element("p"), element("p", undefined, "muted"));
    return item;
  };
  keyed(at("reasons"), list, (group) => group.name, make, (item, group) => {
    const [head, reason, remedy, who] = item.children;
    const many = counted(group.peers.length, "connection");
    if (head.dataset.was !== many) {
      head.replaceChildren(badge(group.state), ` ${many}`);
      head.dataset.was = many;
    }
    const one = group.peers.length === 1 || (group.state !== "used" && group.state !== "in-messages");
    put(reason, shownText(one ? group.reason : `${group.peers[0].transport === "smb-direct" ? "SMB Direct" : "RPC-over-RDMA"} over ${shown(group.peers[0].provider)}; the table shows how much of each connection`));
    fillRemedy(remedy, group.remedy);
    const names = [...new Set(group.peers.map((peer) => users(peer) ? `${host(peer.peer)} (${users(peer)})` : host(peer.peer)))];
    const few = names.slice(0, 8).join(", ");
    put(who, names.length > 8 ? `${few} and ${names.length - 8} more` : few);
  });
}

// Text of the server, which may quote a name.
function shownText(text) {
  return String(text ?? "").replace(UNSEEN, "\ufffd");
}

function host(peer) {
  const text = shown(peer);
  const cut = text.lastIndexOf(":");
  return cut > 0 ? text.slice(0, cut) : text;
}

function users(connection) {
  const names = [...new Set(connection.sessions.map((session) => shown(session.user)))].filter((name) => name !== "");
  if (connection.nfs && connection.nfs.uids.length > 0) names.push(`uid ${connection.nfs.uids.join(", ")}`);
  return names.join(", ");
}

// ---- The other parts

function drawNumbers() {
  const total = status.kinds.reduce((sum, kind) => {
    sum.rdma += byRdma(kind.traffic);
    sum.messages += inMessages(kind.traffic);
    return sum;
  }, { rdma: 0, messages: 0 });
  const now = performance.now();
  const rates = before ? Object.fromEntries(["rdma", "messages"].map((way) =>
    [way, Math.max(0, total[way] - before.total[way]) * 1000 / Math.max(1, now - before.when)])) : null;
  before = { total, when: now };
  const rate = (way) => rates ? `${bytes(rates[way])}/s` : "…";
  const last = latency ? summary(latency.minutes.slice(-2), "", "") : null;
  const numbers = [
    ["by RDMA", rate("rdma")],
    ["in messages and over TCP", rate("messages")],
    ["sessions", String(status.sessions)],
    ["open files and folders", String(status.opens)],
    ["connections", String(status.kinds.reduce((sum, kind) => sum + kind.open, 0))],
    ["half of the operations within", last && last.count > 0 ? time(last.p50) : "–"],
    ["99 % within", last && last.count > 0 ? time(last.p99) : "–"],
  ];
  const make = () => {
    const box = element("div");
    box.append(element("dt"), element("dd"));
    return box;
  };
  keyed(at("numbers"), numbers, ([name]) => name, make, (box, [name, value]) => {
    put(box.firstElementChild, name);
    put(box.lastElementChild, value);
  });
}

function drawConnections() {
  const words = at("filter").value.toLowerCase().split(/\s+/).filter((word) => word !== "");
  const only = at("fallen").checked;
  const matches = (one) => {
    if (only && one.rdma.state !== "not-used" && one.rdma.state !== "not-offered") return false;
    const text = [one.peer, users(one), one.protocol, one.transport, one.provider, one.rdma.reason,
      ...one.sessions.flatMap((session) => session.shares)].join(" ").toLowerCase();
    return words.every((word) => text.includes(word));
  };
  const rows = status.connections.filter(matches);
  const columns = [
    ["client", (one) => shown(one.peer), "name"],
    ["user", (one) => users(one) || "–", "name"],
    ["protocol", (one) => `${shown(one.protocol).toUpperCase()} ${shown(one.dialect)}`.trim(), "short"],
    ["transport", (one) => one.provider ? `${shown(one.transport)} (${shown(one.provider)})` : shown(one.transport)],
    ["RDMA", (one) => badge(one.rdma.state)],
    ["bytes", (one) => {
      const { rdma, inline } = moved(one);
      const label = `${bytes(rdma)} by RDMA, ${bytes(inline)} in messages`;
      const box = element("div");
      box.append(element("div", label), bar([["rdma", rdma], [isRdma(one.transport) ? "inline" : "tcp", inline]], label));
      box.dataset.was = label;
      return box;
    }],
    ["why", (one) => {
      const box = element("div");
      box.append(element("div", shownText(one.rdma.reason)));
      if (one.rdma.remedy) {
        const remedy = element("div");
        fillRemedy(remedy, one.rdma.remedy);
        box.append(remedy);
      }
      box.dataset.was = `${one.rdma.reason} ${one.rdma.remedy}`;
      return box;
    }, "why"],
    ["since", (one) => age(one.age_seconds), "short"],
  ];
  table(at("connections"), "Connections", columns, rows, (one) => `${one.peer} ${one.transport}`, status.more.connections,
    status.connections.length === 0 ? "Nobody is connected." : "No connection matches the filter.", status.connections.length);
}

function drawShares() {
  const columns = [
    ["share", (one) => shown(one.name), "name"],
    ["files", (one) => one.source ? `${shown(one.kind)} ${shown(one.source)}` : shown(one.kind), "name"],
    ["space", (one) => {
      if (!one.space) return "not known";
      const { total_bytes, available_bytes } = one.space;
      const label = `${bytes(available_bytes)} of ${bytes(total_bytes)} free`;
      const box = element("div");
      box.append(element("div", label), bar([["tcp", Math.max(0, total_bytes - available_bytes)], ["free", available_bytes]], label));
      box.dataset.was = label;
      return box;
    }],
    ["open", (one) => one.opens, "number"],
    ["SMB connections", (one) => one.connections, "number"],
    ["protection", (one) => one.encrypted ? "encrypted" : "–"],
    ["state", (one) => {
      const problem = one.not_served ? `not served: ${one.not_served}` : one.warning;
      const box = element("span", problem ? shownText(problem) : "well", problem ? "care" : "good");
      box.dataset.was = box.textContent;
      return box;
    }],
  ];
  table(at("shares"), "Shares", columns, status.shares, (one) => one.name, status.more.shares, "Nothing is shared.");
}

function drawSessions() {
  const sessions = new Map();
  for (const connection of status.connections) {
    for (const session of connection.sessions) {
      const key = session.id || `${connection.peer} ${connection.age_seconds}`;
      const known = sessions.get(key) ?? { ...session, key, peer: connection.peer, ways: new Set() };
      known.ways.add(connection.provider ? `RDMA (${shown(connection.provider)})` : shown(connection.transport));
      sessions.set(key, known);
    }
  }
  const protection = (one) => one.encryption ? `encrypted, ${one.encryption}` : one.encrypted_shares.length > 0 ? "some shares encrypted"
    : one.signing_required ? `signed, ${one.signing}` : "signed on request";
  const columns = [
    ["user", (one) => shown(one.user) || "–", "name"],
    ["client", (one) => host(one.peer), "name"],
    ["shares", (one) => one.shares.map(shown).join(", ") || "–", "name"],
    ["open", (one) => one.opens, "number"],
    ["channels", (one) => `${one.channels} by ${[...one.ways].join(" and ")}`],
    ["protection", protection],
    ["since", (one) => age(one.age_seconds), "short"],
  ];
  // Sessions of connections that are left out are left out, too.
  const isCut = status.more.connections + status.more.sessions > 0;
  const left = isCut ? Math.max(0, status.sessions - sessions.size) : 0;
  table(at("sessions"), "Sessions", columns, [...sessions.values()], (one) => one.key, left, "Nobody has logged on over SMB.");
}

function drawVolumes() {
  at("volumes-section").hidden = status.volumes.length === 0;
  const columns = [
    ["volume", (one) => shown(one.name), "name"],
    ["place", (one) => one.not_served ? "not served" : `${shown(one.kind)} ${shown(one.source)}`, "name"],
    ["size", (one) => one.not_served ? "–" : bytes(one.size), "number"],
    ["NBD clients", (one) => one.clients, "number"],
    ["state", (one) => {
      const problem = one.not_served ?? one.warning;
      const box = element("span", problem ? shownText(problem) : "well", problem ? "care" : "good");
      box.dataset.was = box.textContent;
      return box;
    }],
  ];
  table(at("volumes"), "Volumes", columns, status.volumes, (one) => one.name, status.more.volumes, "");
}

function drawReplication() {
  at("replication-section").hidden = status.replication.length === 0;
  const make = () => {
    const item = element("li");
    item.append(element("h3"), element("p"), element("p"), element("p"));
    return item;
  };
  keyed(at("replication"), status.replication, (line) => line.group, make, (item, line) => {
    const [head, text, reason, remedy] = item.children;
    item.className = line.needs_attention ? "not-used" : "used";
    put(head, `${shown(line.group)} (${shown(line.role)})`);
    put(text, shownText(line.text));
    put(reason, line.reason ? `not by RDMA: ${shownText(line.reason)}` : "");
    reason.hidden = !line.reason;
    fillRemedy(remedy, line.remedy);
  });
}

function drawProblems() {
  const problems = [];
  if (status.state_warning) problems.push(`state directory: ${status.state_warning}`);
  for (const warning of status.warnings ?? []) problems.push(warning);
  for (const share of status.shares) {
    const problem = share.not_served ? `is not served: ${share.not_served}` : share.warning;
    if (problem) problems.push(`share ${share.name}: ${problem}`);
  }
  for (const volume of status.volumes) {
    const problem = volume.not_served ?? volume.warning;
    if (problem) problems.push(`volume ${volume.name}: ${problem}`);
  }
  for (const line of status.replication) if (line.needs_attention) problems.push(`replication: ${line.text}`);
  at("attention").hidden = problems.length === 0;
  keyed(at("problems"), problems, (text) => text, (text) => element("li", shownText(text)), () => {});
}

// ---- Latency

function wanted(series, operation, payload) {
  return (operation === "" || series.operation === operation) && (payload === "" || series.by_rdma === (payload === "rdma"));
}

function added(minutes, operation, payload) {
  const counts = new Array(latency.bounds.length + 1).fill(0);
  let seconds = 0;
  for (const minute of minutes) {
    for (const series of minute.series) {
      if (!wanted(series, operation, payload)) continue;
      series.counts.forEach((n, i) => { counts[i] += n; });
      seconds += series.seconds;
    }
  }
  return { counts, seconds };
}

function summary(minutes, operation, payload) {
  const { counts, seconds } = added(minutes, operation, payload);
  const count = counts.reduce((sum, n) => sum + n, 0);
  const bound = (i) => latency.bounds[i] ?? Infinity;
  const quantile = (part) => {
    let left = Math.ceil(count * part);
    for (let i = 0; i < counts.length; i += 1) {
      left -= counts[i];
      if (left <= 0) return bound(i);
    }
    return Infinity;
  };
  let longest = counts.length - 1;
  while (longest > 0 && counts[longest] === 0) longest -= 1;
  return { count, mean: count > 0 ? seconds / count : 0, p50: quantile(0.5), p99: quantile(0.99), max: bound(longest) };
}

const chosen = (name) => document.querySelector(`input[name="${name}"]:checked`).value;

function drawLatency() {
  if (!latency) return;
  const [operation, payload] = [chosen("operation"), chosen("payload")];
  const columns = latency.minutes.map((minute) => added([minute], operation, payload).counts);
  const buckets = latency.bounds.length + 1;
  let low = buckets;
  let high = -1;
  let most = 0;
  for (const counts of columns) {
    counts.forEach((n, i) => {
      if (n === 0) return;
      low = Math.min(low, i);
      high = Math.max(high, i);
      most = Math.max(most, n);
    });
  }
  if (high < 0) [low, high] = [0, 9];
  // A few rows more than there are, so that one row is not a wall.
  low = Math.max(0, Math.min(low - 1, high - 8));
  high = Math.min(buckets - 1, Math.max(high + 1, low + 9));
  const rows = high - low + 1;
  const heat = at("heat");
  // In pixels of the page, so that its text has the same size at every width.
  const [left, tall, width] = [70, 16, Math.max(300, heat.clientWidth)];
  const wide = (width - left) / 60;
  const height = rows * tall + 24;
  heat.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const draw = (name, attributes, text) => {
    const node = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const nodes = [draw("rect", { class: "ground", x: left, y: 0, width: 60 * wide, height: rows * tall })];
  for (let row = 0; row < rows; row += 1) {
    const bucket = high - row;
    if (bucket % 2 === 0 || rows <= 12) {
      nodes.push(draw("text", { x: left - 6, y: row * tall + 12, "text-anchor": "end" }, bucket < latency.bounds.length ? `≤ ${time(latency.bounds[bucket])}` : "more"));
    }
  }
  // The running minute is the last column, and the one before it that which ended last, however long ago that was.
  const newest = latency.minutes[latency.minutes.length - 2]?.age_seconds ?? 0;
  columns.forEach((counts, minute) => {
    const { ended, age_seconds } = latency.minutes[minute];
    // A server that was stopped for a while leaves a gap.
    const column = minute === columns.length - 1 ? 59 : 58 - Math.round((age_seconds - newest) / 60);
    if (column < 0) return;
    for (let bucket = low; bucket <= high; bucket += 1) {
      const n = counts[bucket];
      if (n === 0) continue;
      const shade = most <= 1 ? 8 : 1 + Math.round(7 * Math.log(n) / Math.log(most));
      const cell = draw("rect", { class: `h${shade}`, x: left + column * wide, y: (high - bucket) * tall, width: Math.max(1, wide - 1), height: tall - 1 });
      const from = bucket > 0 ? `${time(latency.bounds[bucket - 1])} to ` : "up to ";
      cell.append(draw("title", {}, `${new Date(ended * 1000).toLocaleTimeString()}: ${counted(n, "operation")}, ${from}${time(latency.bounds[bucket] ?? Infinity)}`));
      nodes.push(cell);
    }
  });
  for (const minutes of [60, 40, 20]) {
    nodes.push(draw("text", { x: left + (60 - minutes) * wide, y: rows * tall + 18 }, `−${minutes} min`));
  }
  nodes.push(draw("text", { x: left + 60 * wide, y: rows * tall + 18, "text-anchor": "end" }, "now"));
  const all = summary(latency.minutes, operation, payload);
  heat.removeAttribute("aria-labelledby");
  heat.setAttribute("aria-label", all.count === 0 ? "No such operation in the last hour."
    : `Heat map of ${all.count} operations in the last hour: half within ${time(all.p50)}, 99 percent within ${time(all.p99)}, the slowest within ${time(all.max)}. The table below has the numbers.`);
  heat.replaceChildren(...nodes);

  const kinds = [["READ", "read"], ["WRITE", "write"], ["other", "other"]];
  const ways = [["by RDMA", "rdma"], ["in messages", "inline"]];
  const lines = kinds.flatMap(([name, operation]) => ways.map(([way, payload]) =>
    ({ name, way, hour: summary(latency.minutes, operation, payload), minute: summary(latency.minutes.slice(-2), operation, payload) })));
  const cells = [
    ["operations", (one) => one.name],
    ["payload", (one) => one.way],
    ["last hour", (one) => one.hour.count, "number"],
    ["average", (one) => time(one.hour.mean), "number"],
    ["half within", (one) => time(one.hour.p50), "number"],
    ["99 % within", (one) => time(one.hour.p99), "number"],
    ["slowest within", (one) => time(one.hour.max), "number"],
    ["last minute, 99 % within", (one) => one.minute.count > 0 ? time(one.minute.p99) : "–", "number"],
  ];
  table(at("quantiles"), "Latency in numbers", cells, lines.filter((one) => one.hour.count > 0), (one) => `${one.name} ${one.way}`, 0, "No operation in the last hour.");
}

// ---- Slow operations

const DOING = {
  queue: "in a queue",
  decode: "being decoded",
  store: "in the file system",
  pool: "waiting for a worker",
  disk: "waiting for the disk",
  wire: "waiting for the network or the client",
  replica: "waiting for a replication partner",
  peer: "waiting for another client",
};

function drawSlow() {
  at("slow-section").hidden = slow === null;
  if (!slow) return;
  put(at("slow-text"), `Operations of ${time(slow.threshold_ms / 1000)} (log.slow) and more: first those still running, then the last ones that ended.`);
  const name = (key) => [key, (one) => shown(one[key]) || "–", "name"];
  const hops = (one) => Object.entries(one.hops).filter(([, ms]) => ms >= 0.0005).sort(([, a], [, b]) => b - a)
    .map(([hop, ms]) => `${hop} ${time(ms / 1000)}`).join(", ");
  const columns = [
    ["began", (one) => new Date(one.began).toLocaleTimeString(), "short"],
    ["operation", (one) => one.operation ? `${shown(one.protocol).toUpperCase()} ${shown(one.operation)}` : "not understood yet"],
    ["took", (one) => time(one.total_ms / 1000), "number"],
    ["time by hop", hops],
    ["state", (one) => {
      const said = one.at ? `still running, ${DOING[one.at] ?? shown(one.at)}` : "ended";
      const box = element("span", said, one.at ? "care" : "muted");
      box.dataset.was = said;
      return box;
    }],
    ...["user", "client", "share", "file"].map(name),
  ];
  const rows = slow.operations.slice(0, SLOW_ROWS);
  table(at("slow"), "Slow operations", columns, rows, (one) => [one.began, one.client, one.operation, one.file].join(" "),
    slow.more + slow.operations.length - rows.length, "No operation has been slow.", rows.length, "weft status --slow");
}

// ---- Asking

async function ask(path) {
  const headers = token === null ? {} : { Authorization: `Bearer ${token}` };
  const answer = await fetch(path, { headers, cache: "no-store", credentials: "same-origin", redirect: "error", signal: AbortSignal.timeout(ANSWER_WITHIN_MS) });
  if (answer.ok) return answer.json();
  const why = new Error((await answer.text()).trim() || answer.statusText);
  why.code = answer.status;
  throw why;
}

// Screen readers read each change of this text, so the time of the last answer stands beside it.
function told(text, mood) {
  const state = at("state");
  put(state, text);
  state.className = mood;
  document.body.classList.toggle("stale", mood === "bad");
}

// When the server answered last.
let answered = null;

function lost(why) {
  told(answered === null ? `${why}; trying again` : `${why} since ${answered}: what is below is of then; trying again`, "bad");
  put(at("updated"), "");
}

function askForToken(wrong) {
  token = null;
  at("ask").hidden = false;
  at("content").hidden = true;
  put(at("token-wrong"), wrong);
  at("token-wrong").hidden = wrong === "";
  const isLocal = ["localhost", "127.0.0.1", "[::1]"].includes(location.hostname);
  at("token-plain").hidden = location.protocol !== "http:" || isLocal;
  told(wrong === "" ? "a token is required" : "", "care");
  put(at("updated"), "");
  at("token").focus();
}

function draw() {
  const version = status.build ? `${status.version} (${status.build})` : status.version;
  put(at("server"), `${shown(version)}, process ${status.pid}, up ${age(status.up_seconds)}${status.listen ? `, on ${shown(status.listen)}` : ""}`);
  at("reduced").hidden = !reduced;
  at("content").hidden = false;
  drawProblems();
  drawRdma();
  drawNumbers();
  drawConnections();
  drawShares();
  drawSlow();
  drawSessions();
  drawVolumes();
  drawReplication();
}

// Each round begins when the one before has ended, so a slow server is not asked twice.
let round = 0;
async function keepAsking() {
  const mine = ++round;
  let latencyDue = 0;
  while (mine === round) {
    if (!paused && !document.hidden) {
      try {
        const found = await ask(reduced ? "/api/v1/overview" : "/api/v1/status");
        // They have names.
        const operations = reduced ? null : await ask("/api/v1/slow");
        if (performance.now() >= latencyDue) {
          const durations = await ask("/api/v1/latency");
          if (mine !== round) return;
          latencyDue = performance.now() + LATENCY_EVERY_MS;
          latency = durations;
          drawLatency();
        }
        if (mine !== round) return;
        status = found;
        slow = operations;
        const asked = !at("ask").hidden;
        at("ask").hidden = true;
        const first = at("content").hidden;
        draw();
        // What had the focus is gone.
        if (asked) at("main").focus();
        // The width of the map is known only when it is visible.
        if (first) drawLatency();
        const isBack = document.body.classList.contains("stale");
        answered = new Date().toLocaleTimeString();
        if (isBack) told("the server answers again", "muted");
        else if (at("state").className !== "muted") told("", "muted");
        put(at("updated"), `updated ${answered}`);
      } catch (why) {
        if (mine !== round) return;
        if (why.code === 401) return askForToken(token === null ? "" : "The server refuses this token.");
        lost(why.code ? `the server answers ${why.code} (${shownText(why.message)})` : "the server does not answer");
      }
    }
    await new Promise((done) => setTimeout(done, STATUS_EVERY_MS));
  }
}

at("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const typed = at("token").value.trim();
  at("token").value = "";
  // No header could carry it, so the server cannot refuse it.
  if (!/^[\x21-\x7e]+$/.test(typed)) return askForToken("A token is one word of letters, digits and signs (ASCII).");
  token = typed;
  keepAsking();
});
at("pause").addEventListener("click", () => {
  paused = !paused;
  put(at("pause"), paused ? "Continue" : "Pause");
  if (!paused) return keepAsking();
  // An answer that is on its way is not drawn any more.
  round += 1;
  told("paused", "care");
});
at("filter").addEventListener("input", () => { if (status) drawConnections(); });
at("fallen").addEventListener("change", () => { if (status) drawConnections(); });
for (const one of document.querySelectorAll('input[type="radio"]')) one.addEventListener("change", drawLatency);
window.addEventListener("resize", drawLatency);
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && !paused && at("ask").hidden) keepAsking();
});
if (document.body.dataset.shows === "with-token") askForToken("");
else keepAsking();
