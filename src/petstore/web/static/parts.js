// The components of the reference page. Swagger UI reads the form and sends the request. The page leaves validation to the
// service, so that users see the response that a client would get.

import { IDEMPOTENCY_KEY, SAMPLES } from "./samples.js";

export function PetstoreParts({ React, Im }) {
  const h = React.createElement;
  const nothing = () => () => null;

  const slug = (title) => title.toLowerCase().replaceAll(" ", "-");
  const link = (href, text) => h("li", { key: href }, h("a", { href }, text));

  function Layout({ specSelectors, getComponent }) {
    const Markdown = getComponent("Markdown", true);
    const OperationContainer = getComponent("OperationContainer", true);
    const operations = specSelectors.operations().toJS();
    const source = specSelectors.info().get("description");
    const start = source.indexOf("## "); // the introduction comes before the first heading
    const titles = [...source.matchAll(/^## (.+)$/gm)].map(([, title]) => title);
    const guide = React.useRef(null);
    React.useEffect(() => {
      for (const heading of guide.current.querySelectorAll("h2")) heading.id = slug(heading.textContent);
      dispatchEvent(new Event("petstore-shown"));
    }, [source]);
    const contents = h(
      "nav",
      { "aria-label": "On this page" },
      h("h2", null, "Operations"),
      h("ul", null, operations.map(({ operation }) => link(`#${operation.operationId}`, operation.summary))),
      h("h2", null, "Guide"),
      h("ul", null, titles.map((title) => link(`#${slug(title)}`, title))),
      h("h2", null, "Document"),
      h("ul", null, ["openapi.json", "openapi.yaml"].map((file) => link(file, file))),
    );
    const operation = ({ id, path, method, operation }) =>
      h(
        "section",
        { key: id, id: operation.operationId, "aria-label": operation.summary },
        h(OperationContainer, {
          op: Im.fromJS({ path, method, operation, id }),
          specPath: Im.List(["paths", path, method]),
          path,
          method,
          tag: operation.tags[0],
        }),
      );
    return h(
      "div",
      { className: "columns" },
      contents,
      h(
        "main",
        null,
        h("h1", null, "Petstore API"),
        h(Markdown, { source: source.slice(0, start) }),
        h("h2", { id: "operations" }, "Operations"),
        operations.map(operation),
        h("div", { id: "guide", ref: guide }, h(Markdown, { source: source.slice(start) })),
      ),
    );
  }

  const OperationSummary = () =>
    function OperationSummary({ operationProps, isShown, toggleShown }) {
      const { method, path, summary, deprecated } = operationProps.toJS();
      return h(
        "h3",
        { className: "summary" },
        h(
          "button",
          { type: "button", "aria-expanded": isShown, onClick: toggleShown },
          h("span", { className: `method ${method}` }, method.toUpperCase()),
          h("code", null, path),
          h("span", { className: "title" }, summary),
          deprecated && h("span", { className: "badge" }, "deprecated"),
        ),
      );
    };

  // An input field for a parameter, labelled with the parameter's name. It suggests the examples in the schema.
  const JsonSchemaForm = () =>
    function JsonSchemaForm({ value, onChange, schema, description }) {
      const field = {
        "aria-label": description,
        value: value ?? "",
        onChange: (event) => onChange(event.target.value),
      };
      const list = React.useId();
      const choices = schema.get("enum");
      const examples = schema.get("examples");
      if (!choices)
        return h(
          React.Fragment,
          null,
          h("input", { type: "text", spellCheck: false, list: examples && list, ...field }),
          examples && h("datalist", { id: list }, examples.map((value) => h("option", { key: value, value }))),
        );
      return h("select", field, ["", ...choices].map((choice) => h("option", { key: choice, value: choice }, choice || "any")));
    };

  const TextArea = (Original) => (props) => h(Original, { ...props, "aria-label": "Request body", rows: 6, spellCheck: false });

  // The request body: an example to edit, followed by its members.
  const ModelExample = () =>
    function ModelExample({ example, schema }) {
      return h(React.Fragment, null, example, h(Members, { schema: schema.toJS() }));
    };

  function Members({ schema }) {
    return h(
      "table",
      { className: "members" },
      h("thead", null, h("tr", null, ["Member", "Type", "Meaning"].map((name) => h("th", { key: name, scope: "col" }, name)))),
      h(
        "tbody",
        null,
        Object.entries(schema.properties).map(([name, member]) =>
          h(
            "tr",
            { key: name },
            h("td", null, h("code", null, name), schema.required?.includes(name) && h("span", { className: "badge" }, "required")),
            h("td", null, member.enum ? member.enum.join(", ") : (member.format ?? member.type)),
            h("td", null, h(Inline, { text: member.description }), member.default && ` Defaults to ${member.default}.`),
          ),
        ),
      ),
    );
  }

  const Responses = () =>
    function Responses({ responses, tryItOutResponse, path, method, getComponent }) {
      const Samples = getComponent("Samples", true);
      return h(
        React.Fragment,
        null,
        h("div", { role: "status" }, tryItOutResponse && h(Answer, { response: tryItOutResponse.toJS() })),
        h(Samples, { path, method }),
        h("h4", null, "Responses"),
        Object.entries(responses.toJS()).map(([status, response]) => h(Documented, { key: status, status, response })),
      );
    };

  const kind = (status) => (status < 400 ? "good" : "bad");

  function Answer({ response }) {
    const { status, text, headers = {}, duration, error, message } = response;
    if (error && !status) return h("div", { className: "answer" }, h("p", { className: "bad" }, `No response: ${message}`));
    const lines = Object.entries(headers).map(([name, value]) => `${name}: ${[value].flat().join(", ")}`); // Swagger UI splits values at commas
    return h(
      "div",
      { className: "answer" },
      h("h4", null, "Response ", h("span", { className: `status ${kind(status)}` }, status), duration && ` in ${duration} ms`),
      text && h("pre", null, h("code", null, pretty(text))),
      h("details", null, h("summary", null, "Headers"), h("pre", null, h("code", null, lines.sort().join("\n")))),
    );
  }

  // JavaScript rounds integers of more than 53 bits, so a response that might contain one is shown unformatted.
  const pretty = (text) => {
    try {
      return /\d{16}/.test(text) ? text : JSON.stringify(JSON.parse(text), null, 2);
    } catch {
      return text;
    }
  };

  function Documented({ status, response }) {
    const content = response.content?.["application/json"];
    const examples = Object.values(content?.examples ?? (content ? { only: { value: content.example } } : {}));
    return h(
      "details",
      { className: "response", open: status.startsWith("2") },
      h("summary", null, h("span", { className: `status ${kind(status)}` }, status), h(Inline, { text: response.description })),
      examples.map(({ summary, value }, index) =>
        h(
          React.Fragment,
          { key: index },
          summary && h("p", { className: "when" }, summary),
          h("pre", null, h("code", null, JSON.stringify(value, null, 2))),
        ),
      ),
      h("p", { className: "when" }, "Headers"),
      h(
        "dl",
        { className: "headers" },
        Object.entries(response.headers).map(([name, { description }]) =>
          h(React.Fragment, { key: name }, h("dt", null, h("code", null, name)), h("dd", null, h(Inline, { text: description }))),
        ),
      ),
    );
  }

  // Renders a line of Markdown. Supports only `code`.
  function Inline({ text }) {
    return h("span", null, text.split("`").map((part, index) => (index % 2 ? h("code", { key: index }, part) : part)));
  }

  let language = Object.keys(SAMPLES)[0]; // shared by all operations
  const CHOSEN = "petstore-language";

  function Samples({ path, method, specSelectors, oas3Selectors }) {
    const [, update] = React.useReducer((count) => count + 1, 0);
    React.useEffect(() => {
      addEventListener(CHOSEN, update);
      return () => removeEventListener(CHOSEN, update);
    }, []);
    const choose = (name) => {
      language = name;
      dispatchEvent(new Event(CHOSEN));
    };
    const text = SAMPLES[language](requestOf(path, method, specSelectors, oas3Selectors));
    return h(
      "div",
      { className: "samples" },
      h(
        "div",
        { className: "languages" },
        h("h4", null, "Code"),
        Object.keys(SAMPLES).map((name) =>
          h("button", { key: name, type: "button", "aria-pressed": name === language, onClick: () => choose(name) }, name),
        ),
        navigator.clipboard && h("button", { type: "button", className: "copy", onClick: () => navigator.clipboard.writeText(text) }, "Copy"),
      ),
      h("pre", null, h("code", null, text)),
    );
  }

  function requestOf(path, method, specSelectors, oas3Selectors) {
    const operation = specSelectors.operationWithMeta(path, method).toJS();
    const request = {
      base: oas3Selectors.selectedServer(),
      operation: operation.operationId,
      method: method.toUpperCase(),
      path,
      query: {},
      headers: {},
      body: operation.requestBody && (oas3Selectors.requestBodyValue(path, method) ?? bodyExample(operation)),
    };
    for (const { name, in: where, schema, value: given } of operation.parameters) {
      const value = given || (name === IDEMPOTENCY_KEY ? schema.examples[0] : ""); // so that every createPet sample is safe to retry
      if (value === "") continue;
      if (where === "path") request.path = request.path.replace(`{${name}}`, value);
      else request[where === "query" ? "query" : "headers"][name] = value;
    }
    return request;
  }

  const bodyExample = (operation) => JSON.stringify(operation.requestBody.content["application/json"].example, null, 2);

  return {
    components: { PetstoreLayout: Layout, Samples },
    // On startup, Swagger UI would resolve the security schemes for a dialog that this page does not have. Doing so would
    // parse the whole document and block the page. Operations are resolved when they are opened.
    statePlugins: {
      spec: {
        wrapActions: {
          requestResolvedSubtree: (original) => (path) => path[0] === "paths" && original(path),
          validateParams: () => () => {}, // the service validates the parameters
        },
      },
      oas3: { wrapSelectors: { validateBeforeExecute: () => () => () => true } }, // the service also validates the body
    },
    wrapComponents: {
      OperationSummary,
      JsonSchemaForm,
      TextArea,
      modelExample: ModelExample,
      responses: Responses,
      TryItOutButton: nothing, // the form is always editable
    },
  };
}
