// A base address without a host is at this one: show it in full, to be copied.

for (const address of document.querySelectorAll("[data-address]"))
  address.textContent = new URL(address.textContent, document.baseURI).href;
