// Code samples for curl, for Python with petstore-client, and for JavaScript. Each is produced by a pure function of the
// request. A sample starts with a comment that states its prerequisites, and contains no secret, because it reads the key
// from an environment variable.

const KEY = "PETSTORE_API_KEY";
export const IDEMPOTENCY_KEY = "Idempotency-Key";

function url({ base, path, query }) {
  const pairs = Object.entries(query).map(([name, value]) => `${name}=${encodeURIComponent(value)}`);
  return base + path + (pairs.length ? `?${pairs.join("&")}` : "");
}

function curl(request) {
  const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  const method = ["GET", "POST"].includes(request.method) ? "" : `-X ${request.method} `; // with a body, curl sends a POST
  const lines = [`curl ${method}${quoted(url(request))}`, `-H "Authorization: Bearer $${KEY}"`];
  for (const [name, value] of Object.entries(request.headers)) lines.push(`-H ${quoted(`${name}: ${value}`)}`);
  if (request.body !== undefined) lines.push("-H 'Content-Type: application/json'", `-d ${quoted(oneLine(request.body))}`);
  return ["# Nothing to install. Reads the API key from " + KEY + ".", ...retries(request, "#"), lines.join(" \\\n  ")].join("\n");
}

function retries({ headers }, comment) {
  return IDEMPOTENCY_KEY in headers ? [`${comment} Use a new idempotency key for each animal, and the same one for each retry.`] : [];
}

const CALLS = {
  listPets({ query }) {
    const given = [];
    if (query.status) given.push(`status=${JSON.stringify(query.status)}`);
    if (query.limit) given.push(`max_items=${query.limit}`);
    return `for pet in store.list_pets(${given.join(", ")}):\n        print(pet.id, pet.name, pet.status)`;
  },
  createPet({ headers, body }) {
    const { name, status } = parsed(body) ?? {};
    const category = body.match(/"categoryId"\s*:\s*(-?\d+)/); // as text, because JavaScript would round a large int64
    const given = [JSON.stringify(name ?? ""), `category_id=${category ? category[1] : 1}`];
    if (status) given.push(`status=${JSON.stringify(status)}`);
    given.push(`idempotency_key=${JSON.stringify(headers[IDEMPOTENCY_KEY])}`);
    return `pet = store.create_pet(${given.join(", ")})\n    print(pet.id, pet.name, pet.status)`;
  },
  getPet: ({ path }) => `pet = store.get_pet(${path.split("/").at(-1)})\n    print(pet.id, pet.name, pet.status)`,
};

function python(request) {
  const given = [`base_url=${JSON.stringify(request.base)}`];
  if (/^http:\/\/(?!(localhost|127\.[0-9.]+|\[::1\])(:|\/))/.test(request.base)) given.push("allow_http=True");
  const prefer = request.headers.Prefer;
  if (prefer === "handling=strict") given.push("strict=True");
  else if (prefer) given.push(`default_headers={"Prefer": ${JSON.stringify(prefer)}}`);
  return [
    "# pip install ./petstore_client-*.whl",
    "# Get the file from the operator of this service, or build it with `make dist` in a checkout of Petstore.",
    ...retries(request, "#"),
    `from petstore_client import Petstore  # reads the API key from ${KEY}`,
    "",
    `with Petstore(${given.join(", ")}) as store:`,
    `    ${CALLS[request.operation](request)}`,
  ].join("\n");
}

function javascript(request) {
  const lines = [
    `// Nothing to install. Reads the API key from ${KEY}. Save this as sample.mjs, then run: node sample.mjs`,
    ...retries(request, "//"),
    `const response = await fetch(${JSON.stringify(url(request))}, {`,
  ];
  if (request.method !== "GET") lines.push(`  method: "${request.method}",`);
  lines.push("  headers: {", `    Authorization: \`Bearer \${process.env.${KEY}}\`,`);
  for (const [name, value] of Object.entries(request.headers)) lines.push(`    ${JSON.stringify(name)}: ${JSON.stringify(value)},`);
  if (request.body !== undefined) lines.push('    "Content-Type": "application/json",');
  lines.push("  },");
  if (request.body !== undefined) lines.push(`  body: ${bodyInJavaScript(request.body)},`);
  lines.push("});", "console.log(response.status, await response.json());");
  return lines.join("\n");
}

function bodyInJavaScript(body) {
  const exact = parsed(body) !== undefined && !/\d{16}/.test(body); // JavaScript rounds integers of more than 53 bits
  return exact ? `JSON.stringify(${oneLine(body)})` : JSON.stringify(oneLine(body));
}

function parsed(body) {
  try {
    return JSON.parse(body);
  } catch {
    return undefined; // the user is still typing
  }
}

function oneLine(body) {
  return body.trim().replace(/\s*\n\s*/g, " "); // JSON strings cannot contain line breaks
}

export const SAMPLES = { curl, Python: python, JavaScript: javascript };
