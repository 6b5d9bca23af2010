// Copying text, also where the browser gives no clipboard (plain HTTP beyond loopback).

/** Copies `text`; false if the browser refused. */
export async function copyText(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch (_noClipboard) {
    // The old way: a selection in a field that nobody sees.
    const field = document.createElement("textarea");
    field.value = text;
    field.className = "off-screen";
    document.body.append(field);
    field.select();
    const copied = document.execCommand("copy");
    field.remove();
    return copied;
  }
}
