// `/api/v1/agent`: the agent of this `varve up`.

import { ApiError, asApiError, callData } from "./client";

export interface AgentState {
  readonly state: "running" | "off" | "failed";
  readonly reason?: string;
  /** What the kernel did not grant, each with what it is needed for. */
  readonly missing?: readonly string[];
  readonly samples?: number;
  readonly dropped?: number;
  readonly frequency_hz?: number;
}

/** The local agent's state; null where the server has none (a router by itself). Throws `ApiError`. */
export async function askAgent(signal: AbortSignal): Promise<AgentState | null> {
  try {
    return (await callData("api/v1/agent", {}, signal)) as AgentState;
  } catch (error) {
    const failure: ApiError = asApiError(error);
    if (failure.status === 404) return null;
    throw failure;
  }
}
