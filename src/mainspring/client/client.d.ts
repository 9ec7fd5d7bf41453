// The types of client.js, which says what everything does.

/** What a payload can be. */
export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };

export class BusError extends Error {
  constructor(code: string, message: string, status?: number);
  readonly name: "BusError";
  /** Stable, as over HTTP and in Python. */
  readonly code: string;
  /** The HTTP status that the code has. */
  readonly status: number;
}

export function waitMs(failures: number, random?: () => number): number;
export function newId(now?: number, bytes?: Uint8Array): string;

export interface Place {
  topic: string;
  partition: number;
  /** 0: it is delayed. */
  offset: number;
  id: string;
}

export interface PublishOptions {
  key?: string | null;
  headers?: Record<string, string>;
  id?: string;
  delayMs?: number;
  /** Epoch ms. */
  notBefore?: number;
  ttlMs?: number;
}

/** Where a subscription begins; a number is an offset. */
export type Start = "latest" | "beginning" | number | Date | { kind: string; value?: number };

export interface Filter {
  key?: string;
  header?: [string, string];
}

export interface SubscribeOptions {
  group: string;
  from?: Start;
  maxInflight?: number;
  filter?: Filter;
  ack?: "each" | "upto";
  sticky?: boolean;
  groupTtlMs?: number;
}

export interface FollowOptions<T = any> {
  from?: Start;
  filter?: Filter;
  maxInflight?: number;
  keptMs?: number;
  onError?: ErrorHandler<T>;
}

export type Handler<T = any> = (event: Event<T>) => unknown;
export type ErrorHandler<T = any> = (error: unknown, event?: Event<T>) => void;

export class Event<T = any> {
  private constructor();
  readonly topic: string;
  readonly group: string;
  readonly partition: number;
  readonly offset: number;
  readonly attempt: number;
  readonly id: string;
  /** Epoch ms. */
  readonly ts: number;
  readonly key: string | null;
  readonly headers: Record<string, string>;
  readonly payload: T;
  readonly settled: boolean;
  ack(): boolean;
  nack(options?: { delayMs?: number; reason?: string }): boolean;
  reject(reason?: string): boolean;
  extend(ms: number): boolean;
}

export class Subscription<T = any> implements AsyncIterable<Event<T>> {
  private constructor();
  readonly topic: string;
  readonly group: string;
  readonly closed: boolean;
  readonly error: BusError | null;
  /** Resolves when the node has confirmed it; rejects when the node refused it. */
  readonly confirmed: Promise<void>;
  close(): Promise<void>;
  [Symbol.asyncIterator](): AsyncGenerator<Event<T>, void, void>;
}

export type TaskState = "waiting" | "delayed" | "running" | "retrying" | "done" | "failed" | "cancelled" | "expired";

export interface EnqueueOptions {
  kwargs?: Record<string, unknown>;
  key?: string;
  priority?: "high" | "normal" | "low";
  delayMs?: number;
  /** Epoch ms. */
  notBefore?: number;
  ttlMs?: number;
  unique?: string;
  headers?: Record<string, string>;
  /** That of a task declared with one. */
  topic?: string;
}

export class TaskHandle<R = any> {
  private constructor();
  readonly task: string;
  readonly id: string;
  result(options?: { timeoutMs?: number }): Promise<R>;
  state(): Promise<TaskState>;
  cancel(reason?: string): Promise<void>;
}

export interface CommandOptions {
  id?: string;
  timeoutMs?: number;
  /** Pauses are in ms. */
  retry?: { maxAttempts?: number; backoff?: number; maxBackoff?: number };
}

export type State = "connecting" | "open" | "waiting" | "closed";

export interface ClientOptions {
  token?: string;
  /** Where there is none, as in Node 20: that of the package ws. */
  WebSocket?: any;
  fetch?: typeof globalThis.fetch;
  onState?: (state: State) => void;
  maxQueued?: number;
  dedupeWindowMs?: number;
  random?: () => number;
  now?: () => number;
}

export class BusClient {
  constructor(url: string | string[], options?: ClientOptions);
  readonly state: State;
  publish(topic: string, payload?: unknown, options?: PublishOptions): Promise<Place>;
  subscribe<T = any>(
    topic: string,
    options: SubscribeOptions,
    handler?: Handler<T>,
    onError?: ErrorHandler<T>,
  ): Subscription<T>;
  follow<T = any>(topic: string, handler?: Handler<T> | null, options?: FollowOptions<T>): Subscription<T>;
  command<R = any>(type: string, data?: unknown, options?: CommandOptions): Promise<R>;
  query<R = any>(type: string, data?: unknown, options?: { timeoutMs?: number }): Promise<R>;
  enqueue<R = any>(task: string, args?: unknown[], options?: EnqueueOptions): Promise<TaskHandle<R>>;
  task<R = any>(task: string, id: string, options?: { topic?: string }): TaskHandle<R>;
  ack(event: Event): boolean;
  nack(event: Event, options?: { delayMs?: number; reason?: string }): boolean;
  reconnect(): void;
  close(options?: { drainMs?: number }): Promise<void>;
  /** Ask the node over HTTP; the answer's JSON. */
  http(method: string, path: string, body?: unknown): Promise<any>;
  /** Send a frame of the protocol on the open connection. */
  send(frame: string | object): void;
  /** A request of the protocol with an answer. */
  request(type: string, members?: object): Promise<any>;
  unsubscribe(place: { topic: string; group: string }, held: boolean): Promise<void>;
}

export function connect(url: string | string[], options?: ClientOptions): BusClient;
