// The SDK of OpenAI for Node: `node openai_node.mjs FEATURE …`; see asked.py.
import OpenAI from "openai";

const { CLIENT_URL: baseURL, CLIENT_KEY: apiKey, CLIENT_MODEL: model, CLIENT_LEVEL: level } = process.env;
const client = new OpenAI({ baseURL, apiKey, defaultHeaders: { "X-Cloister-Protection": level } });
const name = level === "obfuscated" ? "<redacted>Anna Berger</redacted>" : "Anna Berger";
const question = `My friend ${name} lives in Lyon. What is the weather like where my friend lives?`;
const messages = [{ role: "user", content: question }];
const short = { model, max_tokens: 24 };
const parameters = {
  type: "object", properties: { city: { type: "string", enum: ["Lyon", "Paris", "Rome"] } }, required: ["city"],
  additionalProperties: false,
};
const tools = [{ type: "function", function: { name: "weather", description: "The weather of a city.", parameters } }];
const check = (holds) => { if (!holds) throw new Error("the answer is not as it must be"); };
const say = (answer) => answer.choices[0].message;

const features = {
  chat: async () => check(say(await client.chat.completions.create({ ...short, messages })).content),
  stream: async () => {
    let text = "";
    for await (const piece of await client.chat.completions.create({ ...short, messages, stream: true }))
      text += piece.choices[0]?.delta?.content ?? "";
    check(text);
  },
  history: async () => {
    const before = { role: "assistant", content: "It is sunny in Lyon." };
    const turns = [...messages, before, { role: "user", content: "And in one word?" }];
    check(say(await client.chat.completions.create({ ...short, messages: turns })).content);
  },
  several: async () =>
    check((await client.chat.completions.create({ ...short, messages, n: 2 })).choices.length === 2),
  schema: async () => {
    const response_format = { type: "json_schema", json_schema: { name: "place", schema: parameters, strict: true } };
    const answer = await client.chat.completions.create({ model, max_tokens: 200, messages, response_format });
    check(JSON.parse(say(answer).content).city);
  },
  call: async () => {
    const asked = { model, max_tokens: 200, messages, tools, tool_choice: "required", parallel_tool_calls: false };
    check(JSON.parse(say(await client.chat.completions.create(asked)).tool_calls[0].function.arguments).city);
  },
  result: async () => {
    const called = { name: "weather", arguments: '{"city": "Lyon"}' };
    const asked = { role: "assistant", tool_calls: [{ id: "call_1", type: "function", function: called }] };
    const came = { role: "tool", tool_call_id: "call_1", content: "It is sunny in Lyon." };
    const answer = say(await client.chat.completions.create({ ...short, messages: [...messages, asked, came], tools }));
    check(answer.content || answer.tool_calls);
  },
  responses: async () =>
    check((await client.responses.create({ model, input: question, max_output_tokens: 24 })).output_text),
  embeddings: async () => check((await client.embeddings.create({ model, input: ["one", "two"] })).data.length === 2),
};

for (const feature of process.argv.slice(2)) {
  let came_to = features[feature] ? "works" : "absent";
  try {
    await features[feature]?.();
  } catch (wrong) {
    came_to = `${wrong.constructor.name}: ${wrong.message}`.split("\n")[0].slice(0, 300);
  }
  console.log(JSON.stringify({ feature, came_to }));
}
