// The reference page: loads the document, handles the environment and the key, and starts Swagger UI.

import { PetstoreParts } from "./parts.js";

const kept = sessionStorage; // lasts only until this tab is closed
const PREFIX = { live: "pets_live_", staging: "pets_test_" };
const OTHER = { live: "staging", staging: "live" };
const KEY = /^pets_(live|test)_[0-9A-Za-z]{36}$/;
const radios = [...document.querySelectorAll("[name=environment]")];
const field = document.getElementById("key");
const hint = document.getElementById("key-hint");

const environment = () => radios.find((radio) => radio.checked).value;

// The page sends requests only to its own origin, which serves both environments regardless of their public addresses.
// The exception is staging's own host name, where `v1` is staging and live is not available.
function bases([live, staging]) {
  const host = ({ url }) => new URL(url, document.baseURI).host;
  const here = ({ url }, path) => (url.startsWith(`${location.origin}/`) ? url : new URL(path, document.baseURI).href);
  const atStaging = host(staging) === location.host && host(live) !== location.host;
  return { live: atStaging ? null : here(live, "v1"), staging: here(staging, "staging/v1") };
}

async function start() {
  const spec = await (await fetch("openapi.json")).json();
  const base = bases(spec.servers);
  if (!base.live) radios.find((radio) => radio.value === "live").disabled = true;
  spec.servers = Object.values(base).filter(Boolean).map((url) => ({ url }));

  const ui = SwaggerUIBundle({
    spec,
    dom_id: "#reference",
    layout: "PetstoreLayout",
    plugins: [PetstoreParts],
    docExpansion: "list",
    tryItOutEnabled: true,
    validatorUrl: null,
    requestInterceptor(request) {
      if (field.value) request.headers.Authorization = `Bearer ${field.value.trim()}`;
      const sent = Date.now();
      // Swagger UI measures the duration only if a request succeeds.
      request.responseInterceptor = (response) => Object.assign(response, { duration: Date.now() - sent });
      return request;
    },
  });

  const chosen = radios.find((radio) => radio.value === kept.getItem("environment") && !radio.disabled);
  if (chosen) chosen.checked = true;
  useEnvironment();

  function useEnvironment() {
    kept.setItem("environment", environment());
    field.value = kept.getItem(`key ${environment()}`) ?? "";
    field.placeholder = `${PREFIX[environment()]}…`;
    hint.textContent = "";
    ui.oas3Actions.setSelectedServer(base[environment()]);
  }

  // A key for the other environment is stored for that environment. It does not replace this environment's key.
  function useKey() {
    const key = field.value.trim();
    const here = environment();
    const other = OTHER[here];
    hint.textContent = "";
    if (!key.startsWith(PREFIX[other])) {
      if (!key || key.startsWith(PREFIX[here])) kept.setItem(`key ${here}`, key);
      return;
    }
    if (!base[other]) {
      hint.textContent = `This is a ${other} key, but ${other} is not available at this address.`;
      return;
    }
    kept.setItem(`key ${other}`, key);
    radios.find((radio) => radio.value === other).checked = true;
    useEnvironment();
    hint.textContent = `This is a ${other} key. Requests now go to ${other}.`;
  }

  // Runs when the field loses focus, because a key is incomplete while it is being typed.
  function checkKey() {
    const key = field.value.trim();
    if (key && !KEY.test(key)) hint.textContent = `This is not a complete key. A key consists of ${PREFIX[environment()]} followed by 36 letters and digits.`;
  }

  // Without this, Swagger UI would open links in the guide in a new tab, and would scroll the targets of other links behind
  // the bar.
  function followInPage({ target }) {
    const link = target.closest('a[href^="#"]');
    link?.removeAttribute("target");
    link?.classList.add("noZensmooth");
  }

  function openFromHash() {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const button = target?.querySelector(".summary button[aria-expanded=false]");
    if (button) button.click();
    target?.scrollIntoView();
  }

  for (const radio of radios) radio.addEventListener("change", useEnvironment);
  field.addEventListener("input", useKey);
  field.addEventListener("change", checkKey);
  addEventListener("click", followInPage, { capture: true });
  addEventListener("hashchange", openFromHash);
  addEventListener("petstore-shown", openFromHash);
}

start().catch((error) => {
  document.querySelector("#reference main").textContent = `Cannot show the document: ${error.message}`;
});
