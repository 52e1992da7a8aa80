// Requests to the server, through the command that serves this page. The key of the session is a header that
// this page adds: no cookie, so no other page can make the browser send it.

const KEPT = "probe-session";
let shown = new AbortController(); // for requests of the view on screen

/** Abort the requests of the view that is being left. Actions that it started continue. */
export function leave() {
  shown.abort();
  shown = new AbortController();
}

export class Refused extends Error {
  constructor(status, error) {
    super(error.message);
    this.status = status;
    this.code = error.code;
    this.hint = error.hint || "";
  }
}

/** Exchange the key of a link for a session, which this browser keeps until the command ends. */
export async function open_session(key) {
  const reply = await fetch("/session", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ key }) });
  const answer = await decoded(reply);
  localStorage.setItem(KEPT, answer.session);
}

export function has_session() {
  return localStorage.getItem(KEPT) !== null;
}

async function send(path, { parameters = {}, body, accept = "application/json", signal } = {}) {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== "" && value !== null && value !== undefined));
  const headers = { Authorization: `Bearer ${localStorage.getItem(KEPT) || ""}`, Accept: accept };
  const options = { headers, cache: "no-store", credentials: "omit", signal };
  if (body !== undefined) {
    headers["Content-Type"] = "application/json";
    Object.assign(options, { method: "POST", body: JSON.stringify(body) });
  }
  try {
    return await fetch(query.size ? `${path}?${query}` : path, options);
  } catch {
    throw new Refused(0, { code: "page_ended", message: "the command that serves this page does not answer",
      hint: "If `probe web` has ended, start it again and open its new link." });
  }
}

async function decoded(reply) {
  const text = await reply.text();
  let answer;
  try {
    answer = JSON.parse(text);
  } catch {
    throw new Refused(reply.status, { code: "error", message: `unexpected answer (${reply.status})` });
  }
  if (!reply.ok) throw new Refused(reply.status, answer.error || { message: `refused (${reply.status})` });
  return answer;
}

export async function get(path, parameters) {
  return decoded(await send(path, { parameters, signal: shown.signal }));
}

export async function post(path, body, signal) {
  return decoded(await send(path, { body, signal }));
}

/** SQL of a recipe with the values of its parameters, and of `others` by name, filled in. */
export function with_values(sql, parameters, others = {}) {
  const values = new Map([...parameters.map((one) => [one.name, one.value]), ...Object.entries(others)]);
  const written = (value) => (typeof value === "string" ? `'${value.replaceAll("'", "''")}'` : String(value));
  return sql.replace(/\$(\w+)/g, (found, name) => (values.has(name) ? written(values.get(name)) : found));
}

/** The rows of a query as objects, with the other fields of the answer. */
export async function query(endpoint, sql, limit = 10_000) {
  const answer = await post("/v1/query", { endpoint, sql, limit }, shown.signal);
  const names = answer.columns.map((column) => column.name);
  return { ...answer, names, records: answer.rows.map((row) => Object.fromEntries(row.map((value, place) => [names[place], value]))) };
}

/** The rows of a query as a file: CSV by the server, Parquet by the command. */
export async function rows_file(endpoint, sql, form) {
  const body = { endpoint, sql, limit: 1_000_000 };
  const reply = form === "csv" ? await send("/v1/query", { body, accept: "text/csv" }) : await send("/rows.parquet", { body });
  if (!reply.ok) await decoded(reply);
  return { blob: await reply.blob(), truncated: reply.headers.get("probe-truncated") === "true" };
}

/** Samples of the training threads, in the form of speedscope, as `probe JOB flamegraph` takes them; as text. */
export async function flame_samples(endpoint, seconds) {
  const reply = await send("/flamegraph", { body: { endpoint, seconds } });
  if (!reply.ok) await decoded(reply);
  return reply.text();
}
