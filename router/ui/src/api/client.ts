// HTTP calls to the server. Every failure is an `ApiError` with the server's own message.
//
// Addresses are relative, so that the web UI also works behind a proxy that adds a prefix to the path.

import { parseExactJson } from "./exact_json";

/** Kind of a failed call. */
export type FailureKind =
  /** No connection: the server or the network is down. */
  | "unreachable"
  /** The server is starting or stopping (503). */
  | "unavailable"
  /** The server requires a token (401). */
  | "unauthorized"
  /** The server responded with an error. */
  | "refused"
  /** The user cancelled the call, or a newer one replaced it. */
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

/** Time after which a call without a response fails, in milliseconds. */
const TIMEOUT_MS = 120_000;

const TOKEN_KEY = "varve-token";

/** Stores the bearer token until this tab is closed. */
export function setToken(token: string): void {
  sessionStorage.setItem(TOKEN_KEY, token);
}

/** Returns whether this tab has a token. If so, programs that send profiles need a token too. */
export function hasToken(): boolean {
  return sessionStorage.getItem(TOKEN_KEY) !== null;
}

/**
 * Calls `path` (relative, `api/v1/...`) and returns the response if it is a success.
 *
 * Throws `ApiError`; its message is for the user.
 */
export async function call(path: string, params: Record<string, string>, signal: AbortSignal): Promise<Response> {
  const text = new URLSearchParams(params).toString();
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
    throw connectionError(error, signal);
  }
  if (response.ok) return response;
  throw await failureOf(response, signal);
}

/** The error of a call that got no response, or only part of one. */
function connectionError(error: unknown, signal: AbortSignal): ApiError {
  if (signal.aborted) return new ApiError("cancelled", "cancelled");
  if (error instanceof DOMException && error.name === "TimeoutError") {
    return new ApiError(
      "refused",
      `no response within ${TIMEOUT_MS / 1000} s: choose a shorter time range or fewer series`,
    );
  }
  return new ApiError("unreachable", `the server at ${location.host} does not respond`);
}

/** The error of a response. Its message is that of the body, which may be JSON or text. */
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
    return connectionError(error, signal);
  }
  if (sentence === "") sentence = `the server responded ${response.status} ${response.statusText}`.trim();
  const kind = response.status === 401 ? "unauthorized" : response.status === 503 ? "unavailable" : "refused";
  return new ApiError(kind, sentence.slice(0, 2000), response.status);
}

/** Body of a response as text. Throws `ApiError` if the connection breaks. */
export async function bodyText(response: Response, signal: AbortSignal): Promise<string> {
  try {
    return await response.text();
  } catch (error) {
    throw connectionError(error, signal);
  }
}

/** Parses a response. Throws `ApiError` if it is not JSON, for example a proxy's error page. */
export function parseResponse(text: string, path: string): unknown {
  try {
    return parseExactJson(text);
  } catch (_notJson) {
    throw new ApiError("refused", `the response to ${path} is not JSON: check that varve serves this address`);
  }
}

/** The shards of the cluster that a response covers. */
export interface Shards {
  readonly asked: number;
  readonly answered: number;
  /** Shards that did not answer; absent if all answered. */
  readonly missing?: ReadonlyArray<{ readonly shard: number; readonly reason: string }>;
}

/** A response in the form of the Prometheus API. */
export interface DataResponse {
  readonly data: unknown;
  /** Present only if some shards did not answer. */
  readonly shards?: Shards;
  /** Parts of the data that are missing, one sentence each. */
  readonly warnings: readonly string[];
}

/** Fetches a response in the form of the Prometheus API, with its warnings. Throws `ApiError`. */
export async function callWithWarnings(
  path: string,
  params: Record<string, string>,
  signal: AbortSignal,
): Promise<DataResponse> {
  const response = await call(path, params, signal);
  const body = parseResponse(await bodyText(response, signal), path);
  if (typeof body !== "object" || body === null || !("data" in body)) {
    throw new ApiError("refused", `the response to ${path} has no data: check that varve serves this address`);
  }
  const { data, shards, warnings = [] } = body as { data: unknown; shards?: Shards; warnings?: readonly string[] };
  return { data, shards, warnings };
}

/** Fetches the field `data` of a response in the form of the Prometheus API. Throws `ApiError`. */
export async function callData(path: string, params: Record<string, string>, signal: AbortSignal): Promise<unknown> {
  return (await callWithWarnings(path, params, signal)).data;
}

/** Converts any thrown value to an `ApiError`, so that all errors are shown in the same way. */
export function asApiError(error: unknown): ApiError {
  if (error instanceof ApiError) return error;
  return new ApiError("refused", error instanceof Error ? error.message : String(error));
}
