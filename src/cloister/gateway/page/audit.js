// The matrix of promises: rows of the ledger, what this page's own attempts found, or a report of `cloister audit`.

import { byId, element } from "./dom.js";

const OUTCOMES = ["PASS", "FAIL", "OFF", "NOT TRIED"];
const MOST_REPORT_BYTES = 1 << 20;
const LATER = "Takes “cloister audit”: a second tenant, the node’s processes, or its evidence.";

/** `facts()` gives the model’s name and the key. */
export function mountAudit(facts) {
  const dialog = byId("audit");
  byId("open-audit").addEventListener("click", async () => {
    dialog.showModal();
    draw((await ledger()).map((row) => ({ ...row, outcome: "NOT TRIED", found: row.tries.length ? "" : LATER })));
  });
  byId("audit-try").addEventListener("click", async () => {
    byId("audit-try").disabled = true;
    try {
      const rows = [];
      for (const row of await ledger()) rows.push({ ...row, ...(await tried(row, facts())) });
      draw(rows);
    } finally {
      byId("audit-try").disabled = false;
    }
  });
  byId("audit-report").addEventListener("change", async (event) => {
    const [file] = event.target.files;
    try {
      if (file.size > MOST_REPORT_BYTES) throw new Error("too large");
      draw(JSON.parse(await file.text()).rows.filter((row) => OUTCOMES.includes(row.outcome)));
    } catch {
      byId("audit-counts").textContent = "This is no report of “cloister audit --json”.";
    }
  });
}

async function ledger() {
  return (await fetch("/static/ledger.json")).json();
}

/** What one row's attempts found; one that could not be made is no pass. */
async function tried({ tries, off, why }, { model, key }) {
  if (!tries.length) return why ? { outcome: "OFF", found: why } : { outcome: "NOT TRIED", found: LATER };
  for (const { method, path, body, key: whose, headers, refused } of tries) {
    const bearer = { own: key, wrong: "sk-wrong", none: null }[whose];
    let status;
    try {
      const response = await fetch(path, {
        method, cache: "no-store", credentials: "omit",
        headers: { ...(body && { "Content-Type": "application/json" }), ...headers, ...(bearer && { Authorization: `Bearer ${bearer}` }) },
        body: body && JSON.stringify(body.model ? { ...body, model } : body),
      });
      status = response.status;
      await response.body?.cancel();
    } catch {
      return { outcome: "NOT TRIED", found: "The server does not answer." };
    }
    if (status === 401 && whose === "own") return { outcome: "NOT TRIED", found: "This takes an API key: see Settings." };
    if (!refused.includes(status)) return { outcome: "FAIL", found: `${method} ${path} answered ${status}.` };
  }
  const refusals = `${tries.length} attempts were refused.`;
  return { outcome: off ? "OFF" : "PASS", found: off ? `The node does not do it; ${refusals}` : refusals };
}

function draw(rows) {
  const counts = OUTCOMES.map((name) => [rows.filter((row) => row.outcome === name).length, name]);
  byId("audit-counts").textContent = counts.filter(([count]) => count).map((pair) => pair.join(" ")).join(", ");
  byId("audit-rows").replaceChildren(...rows.map(({ name, endangers, outcome, found }) => element("tr", {},
    element("th", { scope: "row" }, String(name)), element("td", {}, String(endangers)),
    element("td", { class: "outcome", "data-outcome": outcome }, outcome), element("td", {}, String(found)))));
}
