// The work of ask_anthropic_node.py: node ask_anthropic_node.mjs FOLDER JSON. Prints [piece, text] per line.

import assert from "node:assert";
import { createRequire } from "node:module";

const [folder, described] = process.argv.slice(2);
const { url, key, model, question, schema, grammar } = JSON.parse(described);
const { Anthropic } = createRequire(`${folder}/`)("@anthropic-ai/sdk");
const client = new Anthropic({ baseURL: url, apiKey: key, authToken: null, maxRetries: 0 });
const messages = [{ role: "user", content: question }];
const tools = [{ name: "weather", description: "The forecast.", input_schema: schema }];

function resultsOf(message) {
  const results = [];
  for (const block of message.content) {
    if (block.type === "tool_use") {
      const { days, unit } = block.input;
      assert([1, 2, 3].includes(days) && ["C", "F"].includes(unit));
      results.push({ type: "tool_result", tool_use_id: block.id, content: "mild" });
    }
  }
  return results;
}

function textOf(message) {
  const texts = message.content.filter((block) => block.type === "text");
  return texts.map((block) => block.text).join("");
}

function done(piece, text) {
  console.log(JSON.stringify([piece, text ?? ""]));
}

async function ask() {
  const models = await client.models.list();
  done("models", models.data[0].id);

  const count = await client.messages.countTokens({ model, messages });
  done("count", String(count.input_tokens));

  const short = { model, messages, max_tokens: 16 };
  done("message", textOf(await client.messages.create(short)));
  done("message stream", await client.messages.stream(short).finalText());

  for (const streaming of [false, true]) {
    const history = [...messages];
    const body = { model, tools, max_tokens: 128 };
    const once = { type: "tool", name: "weather", disable_parallel_tool_use: true };
    const called = await answerTo({ ...body, messages: history, tool_choice: once }, streaming);
    assert.equal(called.stop_reason, "tool_use");
    const results = resultsOf(called);
    assert.equal(results.length, 1);
    history.push({ role: "assistant", content: called.content });
    history.push({ role: "user", content: results });
    const none = { type: "none" };
    const last = { ...body, messages: history, tool_choice: none, grammar };
    done(streaming ? "tools stream" : "tools", textOf(await answerTo(last, streaming)));
  }

  const bad = client.messages.create({ ...short, max_tokens: -1 });
  await assert.rejects(bad, Anthropic.BadRequestError);
  done("error", "invalid_request_error");
}

async function answerTo(body, streaming) {
  if (streaming) {
    return await client.messages.stream(body).finalMessage();
  }
  return await client.messages.create(body);
}

await ask();
