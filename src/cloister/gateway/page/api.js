// Talks to the server. Knows the wire format of the OpenAI API, not the page.

export class ApiError extends Error {
  constructor(message, { status = 0, code = null, retryAfter = null } = {}) {
    super(message);
    this.status = status;
    this.code = code;
    this.retryAfter = retryAfter;
  }
}

export async function pageInfo() {
  const response = await reach("/api/page", { cache: "no-store" });
  if (!response.ok) throw await errorOf(response);
  return response.json();
}

/** What the provider's process says it has of the answer with this id. */
export async function requestView(id, key) {
  const response = await reach(`/v1/requests/${encodeURIComponent(id)}/view`, { headers: withKey(key), cache: "no-store" });
  if (!response.ok) throw await errorOf(response);
  return response.json();
}

/** Asks the server to forget a session. The request may outlive the page, and its failure is ignored. */
export function endSession(session, key) {
  reach(`/v1/sessions/${encodeURIComponent(session)}`, { method: "DELETE", headers: withKey(key), keepalive: true })
    .catch(() => {});
}

/** Yields {id}, {thought}, {text}, {call}, {finish}, {usage} and {progress} as they arrive; throws ApiError, or AbortError when `signal` fires. */
export async function* streamChat(body, key, signal) {
  const headers = { "Content-Type": "application/json", ...withKey(key) };
  const response = await reach("/v1/chat/completions", {
    method: "POST", headers, signal, body: JSON.stringify(body), cache: "no-store",
  });
  if (!response.ok) throw await errorOf(response);

  let id = null;
  for await (const { data, comment } of serverSent(response.body)) {
    if (comment) {
      yield { progress: comment };
      continue;
    }
    if (data === "[DONE]") return;
    const chunk = parsed(data);
    if (chunk.id && !id) yield { id: (id = chunk.id) };
    if (chunk.error) throw new ApiError(chunk.error.message, { status: 500, code: chunk.error.code });
    const choice = chunk.choices?.[0];
    const { reasoning_content: thought, content: text, tool_calls: calls = [] } = choice?.delta ?? {};
    if (thought) yield { thought };
    if (text) yield { text };
    for (const call of calls ?? []) yield { call };
    if (choice?.finish_reason) yield { finish: choice.finish_reason };
    if (chunk.usage) yield { usage: chunk.usage };
  }
  throw new ApiError("The connection broke off before the end of the answer.", { code: "broken_stream" });
}

const withKey = (key) => (key ? { Authorization: `Bearer ${key}` } : {});

async function reach(url, options) {
  try {
    return await fetch(url, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server could not be reached.", { code: "unreachable" });
  }
}

async function errorOf(response) {
  let error = {};
  try {
    error = (await response.json()).error ?? {};
  } catch {
    // a proxy's HTML page, say: the status alone has to do
  }
  return new ApiError(error.message ?? `The server answered with status ${response.status}.`, {
    status: response.status,
    code: error.code ?? null,
    retryAfter: Number(response.headers.get("Retry-After")) || null,
  });
}

function parsed(data) {
  try {
    return JSON.parse(data);
  } catch {
    throw new ApiError("The server sent something that is not JSON.", { code: "broken_stream" });
  }
}

/** {data} of each server-sent event and {comment} of each line that is one (HTML standard, section 9.2.6): how far a slow
    answer is. Other fields are not used here. */
async function* serverSent(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let pending = "";
  let data = [];
  try {
    while (true) {
      const { value, done } = await readFrom(reader);
      if (done) return;
      const lines = (pending + value).split("\n");
      pending = lines.pop();
      for (const line of lines.map((each) => each.replace(/\r$/, ""))) {
        if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
        else if (line.startsWith(":")) yield { comment: line.slice(1).trim() };
        else if (line === "" && data.length) {
          yield { data: data.join("\n") };
          data = [];
        }
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

async function readFrom(reader) {
  try {
    return await reader.read();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The connection broke off before the end of the answer.", { code: "broken_stream" });
  }
}
