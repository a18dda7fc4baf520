// What pages do by themselves: refresh, local times, dialogs, copying, ticking, the progress of an upload.
// Everything works without it too, only with more waiting.
"use strict";

(() => {
  const all = (selector, root = document) => root.querySelectorAll(selector);
  const forms = {
    medium: new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" }),
    short: new Intl.DateTimeFormat(undefined, { dateStyle: "short", timeStyle: "short" }),
  };

  function localTimes(root) {
    for (const time of all("time[datetime]:not([title])", root)) {
      time.title = time.textContent;
      time.textContent = forms[time.dataset.style].format(new Date(time.dateTime));
    }
  }

  function note(text, good) {
    const line = document.createElement("p");
    line.className = "note " + (good ? "good" : "bad");
    line.textContent = text;
    document.getElementById("notes").replaceChildren(line);
  }

  // Parts with data-refresh ask for themselves anew, while somebody can see them.
  function refresh(element) {
    setInterval(() => {
      if (document.visibilityState === "visible" && !document.querySelector("dialog[open]")) htmx.trigger(element, "refresh");
    }, 1000 * element.dataset.refresh);
  }

  // Tables that were unfolded stay so when their part of the page is replaced, and animals that a search still finds stay ticked.
  let unfolded = [];
  let kept = [];
  document.addEventListener("htmx:beforeSwap", (event) => {
    kept = event.target.id === "rows" ? [...all("#rows input:checked")].map((box) => box.value) : [];
    unfolded = [...all("details[open][id]")].map((details) => [details.id, details.querySelector(".scroll")?.scrollTop ?? 0]);
  });
  document.addEventListener("htmx:afterSwap", (event) => {
    for (const [id, top] of unfolded) {
      const details = document.getElementById(id);
      if (!details || details.open) continue;
      details.open = true;
      if (details.querySelector(".scroll")) details.querySelector(".scroll").scrollTop = top;
    }
    for (const box of all("#rows input[type=checkbox]")) box.checked ||= kept.includes(box.value);
    if (event.target.id === "dialog" && !event.target.open) event.target.showModal();
    countTicks();
  });
  document.addEventListener("htmx:load", (event) => localTimes(event.target));

  document.addEventListener("htmx:responseError", (event) => {
    const text = event.detail.xhr.getResponseHeader("content-type")?.startsWith("text/plain") && event.detail.xhr.responseText;
    note(text || "The console could not do that.", false);
  });
  document.addEventListener("htmx:sendError", () => note("The console does not answer. What you see may be old.", false));

  function countTicks() {
    const ticked = all("#rows input:checked").length;
    for (const box of all("[data-tick-all]")) box.checked = ticked > 0 && ticked === all("#rows input[type=checkbox]").length;
    for (const place of all("[data-ticked]")) place.textContent = ticked ? `Change ${ticked} ticked to` : "Change the ticked to";
    for (const button of all("#ticked .actions button")) button.disabled = !ticked;
  }
  document.addEventListener("change", (event) => {
    if (event.target.matches("[data-tick-all]")) {
      for (const box of all("#rows input[type=checkbox]")) box.checked = event.target.checked;
    }
    if (event.target.closest("#ticked")) countTicks();
  });

  document.addEventListener("click", async (event) => {
    const copy = event.target.closest("[data-copy]");
    if (copy) {
      try {
        await navigator.clipboard.writeText(document.getElementById(copy.dataset.copy).textContent);
        copy.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(document.getElementById(copy.dataset.copy));
        copy.textContent = "Press Ctrl+C";
      }
    }
    const close = event.target.closest("dialog [data-close]");
    if (close) {
      event.preventDefault();
      close.closest("dialog").close();
    }
  });

  // A file is sent by hand, so that its progress can be shown; the answer is the page of the import.
  document.addEventListener("submit", (event) => {
    const upload = event.target.closest("form[data-upload]");
    if (!upload) return;
    event.preventDefault();
    const request = new XMLHttpRequest();
    const sent = upload.querySelector(".sent");
    sent.hidden = false;
    request.upload.onprogress = (at) => (sent.querySelector("progress").value = (100 * at.loaded) / at.total);
    request.onload = () => {
      sent.hidden = true;
      if (request.status === 201) location.assign(request.getResponseHeader("location"));
      else if (request.status === 401) location.reload();
      else note(request.responseText, false);
    };
    request.onerror = () => note("The console does not answer. The file was not taken.", false);
    request.open("POST", upload.action);
    request.setRequestHeader("HX-Request", "true");
    request.send(new FormData(upload));
  });

  document.addEventListener("DOMContentLoaded", () => {
    localTimes(document);
    countTicks();
    for (const element of all("[data-refresh]")) refresh(element);
  });
})();
