// One way to ask the server: its sentence on every failure, and nothing thrown that is not an `ApiError`.
//
// Addresses are relative, so the page works behind a proxy that adds a path.

import { parseExactJson } from "./exact_json";

/** Why an answer did not come. */
export type FailureKind =
  /** Nobody answered: the server is gone, or the network. */
  | "unreachable"
  /** It answers but does not serve yet, or no more (503). */
  | "unavailable"
  /** It wants a token (401). */
  | "unauthorized"
  /** It answered with an error. */
  | "refused"
  /** The person pressed cancel, or a newer question took its place. */
  | "cancelled";

export class ApiError extends Error {
  constructor(
    readonly kind: FailureKind,
    message: string,
    readonly status = 0,
  ) {
    super(message);
  }
}

/** A call that has no answer after this long is given up, in milliseconds. */
const TIMEOUT_MS = 120_000;

const TOKEN_KEY = "varve-token";

/** Keeps the bearer token for this tab, and for no longer. */
export function setToken(token: string): void {
  sessionStorage.setItem(TOKEN_KEY, token);
}

/** Whether this tab has a token: then what pushes needs it too. */
export function hasToken(): boolean {
  return sessionStorage.getItem(TOKEN_KEY) !== null;
}

/**
 * Calls `path` (relative, `api/v1/...`) and returns the response if it is a success.
 *
 * Throws `ApiError`; its message is a sentence for the person who looks at the page.
 */
export async function call(path: string, params: Record<string, string | string[]>, signal: AbortSignal): Promise<Response> {
  const search = new URLSearchParams();
  for (const [key, value] of Object.entries(params)) {
    for (const one of Array.isArray(value) ? value : [value]) search.append(key, one);
  }
  const text = search.toString();
  const token = sessionStorage.getItem(TOKEN_KEY);
  const timeout = AbortSignal.timeout(TIMEOUT_MS);
  let response: Response;
  try {
    response = await fetch(text === "" ? path : `${path}?${text}`, {
      signal: AbortSignal.any([signal, timeout]),
      headers: token ? { Authorization: `Bearer ${token}` } : {},
      cache: "no-store",
    });
  } catch (error) {
    throw lostAnswer(error, signal);
  }
  if (response.ok) return response;
  throw await failureOf(response, signal);
}

/** The error of a call or a body that broke off. */
function lostAnswer(error: unknown, signal: AbortSignal): ApiError {
  if (signal.aborted) return new ApiError("cancelled", "cancelled");
  if (error instanceof DOMException && error.name === "TimeoutError") {
    return new ApiError("refused", `no answer within ${TIMEOUT_MS / 1000} s: ask for a shorter time or fewer series`);
  }
  return new ApiError("unreachable", `the server at ${location.host} does not answer`);
}

/** The server's own sentence, whatever form the error body has. */
async function failureOf(response: Response, signal: AbortSignal): Promise<ApiError> {
  let sentence = "";
  try {
    const body = await response.text();
    try {
      const parsed: unknown = JSON.parse(body);
      if (typeof parsed === "object" && parsed !== null && "error" in parsed) sentence = String(parsed.error);
    } catch (_notJson) {
      sentence = body.trim();
    }
  } catch (error) {
    return lostAnswer(error, signal);
  }
  if (sentence === "") sentence = `the server answered ${response.status} ${response.statusText}`.trim();
  const kind = response.status === 401 ? "unauthorized" : response.status === 503 ? "unavailable" : "refused";
  return new ApiError(kind, sentence.slice(0, 2000), response.status);
}

/** Text of a response's body; a body that breaks off is an `ApiError` like a call that fails. */
export async function bodyText(response: Response, signal: AbortSignal): Promise<string> {
  try {
    return await response.text();
  } catch (error) {
    throw lostAnswer(error, signal);
  }
}

/** Parses an answer; one that is not JSON (a proxy's page, say) is an error that says so. */
export function parseAnswer(text: string, path: string): unknown {
  try {
    return parseExactJson(text);
  } catch (_notJson) {
    throw new ApiError("refused", `the answer to ${path} is not JSON: is this address a varve?`);
  }
}

/** `data` of a Prometheus-style answer. */
export async function callData(path: string, params: Record<string, string | string[]>, signal: AbortSignal): Promise<unknown> {
  const response = await call(path, params, signal);
  const answer = parseAnswer(await bodyText(response, signal), path);
  if (typeof answer !== "object" || answer === null || !("data" in answer)) {
    throw new ApiError("refused", `the answer to ${path} has no data: is this address a varve?`);
  }
  return answer.data;
}

/** Any thrown value as an `ApiError`, so that one place shows them all. */
export function asApiError(error: unknown): ApiError {
  if (error instanceof ApiError) return error;
  return new ApiError("refused", error instanceof Error ? error.message : String(error));
}
