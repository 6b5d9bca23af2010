// State of the agent that runs inside this `varve up`, from `/api/v1/agent`.

import { ApiError, asApiError, callData } from "./client";

export interface AgentState {
  readonly state: "running" | "off" | "failed";
  readonly reason?: string;
  /** Privileges that the kernel did not grant, each with its purpose. */
  readonly missing?: readonly string[];
  readonly samples?: number;
  readonly dropped?: number;
  readonly frequency_hz?: number;
}

/** Fetches the agent's state; null if the server has no agent (a router). Throws `ApiError`. */
export async function fetchAgent(signal: AbortSignal): Promise<AgentState | null> {
  try {
    return (await callData("api/v1/agent", {}, signal)) as AgentState;
  } catch (error) {
    const failure: ApiError = asApiError(error);
    // 403: the token is of another tenant than that of the agent.
    if (failure.status === 404 || failure.status === 403) return null;
    throw failure;
  }
}
