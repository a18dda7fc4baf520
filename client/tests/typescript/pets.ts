// Code that a developer writes with the generated types: list, create, get, page, and an error.
// The test compiles it strictly against the document of a running service, and runs it.
import { randomUUID } from "node:crypto";
import createClient from "openapi-fetch";
import type { components, paths } from "./schema.js";

type Pet = components["schemas"]["Pet"];

const [baseUrl, key] = process.argv.slice(2);
const client = createClient<paths>({ baseUrl, headers: { Authorization: `Bearer ${key}` } });

const created = await client.POST("/pets", {
  params: { header: { "Idempotency-Key": randomUUID() } },
  body: { name: "Rex", categoryId: 7 },
});
if (!created.data) throw new Error(created.error.code);

const got = await client.GET("/pets/{petId}", { params: { path: { petId: created.data.id } } });

const listed: Pet[] = [];
let cursor: string | undefined;
let pages = 0;
do {
  const page = await client.GET("/pets", { params: { query: { limit: 2, status: "available", cursor } } });
  if (!page.data) throw new Error(page.error?.code);
  listed.push(...page.data);
  pages += 1;
  cursor = /[?&]cursor=([^&>]+)[^>]*>; rel="next"/.exec(page.response.headers.get("Link") ?? "")?.[1];
} while (cursor);

const missing = await client.GET("/pets/{petId}", { params: { path: { petId: 999_999_999 } } });

console.log(
  JSON.stringify({
    created: created.data,
    got: got.data,
    listed: listed.map((pet) => pet.id),
    pages,
    code: missing.error?.code,
    remaining: missing.response.headers.get("X-RateLimit-Remaining"),
  }),
);
