// Copies text, even if the browser offers no clipboard (plain HTTP on another host).

/** Copies `text`; false if the browser refused. */
export async function copyText(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch (_noClipboard) {
    // Without a clipboard, the text is selected in an invisible field and copied from there.
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
