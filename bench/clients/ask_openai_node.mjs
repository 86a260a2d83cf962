// The work of ask_openai_node.py: node ask_openai_node.mjs FOLDER JSON. Prints [piece, text] per line.

import assert from "node:assert";
import { createRequire } from "node:module";

const [folder, described] = process.argv.slice(2);
const { url, key, model, question, code, tool, grammar } = JSON.parse(described);
const OpenAI = createRequire(`${folder}/`)("openai");
const client = new OpenAI({ baseURL: url, apiKey: key, maxRetries: 0 });
const messages = [{ role: "user", content: question }];
const named = { type: "function", function: { name: "weather" } };

let calls = 0;

function weather({ days, unit }) {
  assert([1, 2, 3].includes(days) && ["C", "F"].includes(unit));
  calls += 1;
  return "mild";
}

function done(piece, text) {
  console.log(JSON.stringify([piece, text ?? ""]));
}

async function ask() {
  const models = await client.models.list();
  done("models", models.data[0].id);

  const chat = await client.chat.completions.create({ model, messages, max_tokens: 16 });
  done("chat", chat.choices[0].message.content);

  const stream = client.chat.completions.stream({ model, messages, max_tokens: 16 });
  done("chat stream", await stream.finalContent());

  const text = await client.completions.create({ model, prompt: code, max_tokens: 16 });
  done("completion", text.choices[0].text);

  const tools = [{ ...tool, function: { ...tool.function, function: weather, parse: JSON.parse } }];
  for (const streaming of [false, true]) {
    const body = { model, messages, tools, tool_choice: named, stream: streaming };
    const runner = client.chat.completions.runTools({ ...body, max_tokens: 128 });
    await runner.done();
    assert.equal(calls, 1);
    calls = 0;
    const last = await client.chat.completions.create({
      model,
      messages: runner.messages,
      tools: [tool],
      tool_choice: "none",
      grammar,
    });
    done(streaming ? "tools stream" : "tools", last.choices[0].message.content);
  }

  const answer = await client.responses.create({ model, input: question, max_output_tokens: 16 });
  done("response", answer.output_text);

  const input = [{ role: "user", content: question }];
  const own = [{ type: "function", ...tool.function, strict: false }];
  const events = client.responses.stream({
    model,
    input,
    tools: own,
    tool_choice: { type: "function", name: "weather" },
  });
  const response = await events.finalResponse();
  for (const item of response.output) {
    input.push(item);
    if (item.type === "function_call") {
      const output = weather(JSON.parse(item.arguments));
      input.push({ type: "function_call_output", call_id: item.call_id, output });
    }
  }
  assert.equal(calls, 1);
  const after = await client.responses.create({
    model,
    input,
    tools: own,
    tool_choice: "none",
    grammar,
  });
  done("response tools", after.output_text);
}

await ask();
