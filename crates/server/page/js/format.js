// Numbers, money and times as people read them. Everything here returns text.

const NONE = '–';
const numbers = digits => new Intl.NumberFormat('en-US', { maximumFractionDigits: digits });
const whole = numbers(0),
  tenths = numbers(1);
const millionths = numbers(6);
const digits = new Intl.NumberFormat('en-US', { maximumSignificantDigits: 2 });

/** A count, or a measured number with as many digits as tell something. */
export function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return NONE;
  const size = Math.abs(value);
  if (Number.isInteger(value) || size >= 1000) return whole.format(value);
  return (size >= 1 ? tenths : digits).format(value);
}

/** A number with all that a column of it tells; whole numbers of any size are exact. */
export const exact = value => (typeof value === 'bigint' ? whole : millionths).format(value);

/** A large number, short: 12.3 k, 4.5 M. */
export function short(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return NONE;
  const size = Math.abs(value);
  if (size > 0 && size < 0.05) return '<0.1';
  if (value < 0) return `−${short(size)}`;
  for (const [least, unit] of [
    [1e9, 'G'],
    [1e6, 'M'],
    [1e4, 'k'],
  ]) {
    if (size >= least) return `${tenths.format(value / (least === 1e4 ? 1e3 : least))} ${unit}`;
  }
  return size >= 100 ? whole.format(value) : tenths.format(value);
}

/** Money in a currency of ISO 4217; without a currency a plain number. */
export function money(value, currency) {
  if (value === null || value === undefined) return NONE;
  const size = Math.abs(value);
  const amount = size >= 1e6 ? short(value) : size >= 10 ? whole.format(value) : value.toFixed(2);
  const sign = { USD: '$', EUR: '€', GBP: '£' }[currency];
  return sign
    ? `${sign}${amount}`.replace(`${sign}-`, `−${sign}`)
    : `${amount} ${currency ?? ''}`.trim();
}

/** A part of a whole in percent. */
export function percent(part, all) {
  if (!all || part === null || part === undefined) return NONE;
  const value = (100 * part) / all;
  const size = Math.abs(value);
  return `${size >= 10 || value === 0 ? whole.format(value) : size >= 0.95 ? tenths.format(value) : '<1'} %`;
}

/** A length of time, ms, in its two largest units. */
export function duration(ms) {
  if (ms === null || ms === undefined || Number.isNaN(ms)) return NONE;
  if (ms === 0) return '0 s';
  const sign = ms < 0 ? '−' : '';
  const seconds = Math.abs(ms) / 1000;
  if (seconds < 1) return `${sign}${Math.round(Math.abs(ms))} ms`;
  if (seconds < 60)
    return `${sign}${seconds < 10 ? tenths.format(seconds) : Math.round(seconds)} s`;
  const parts = [
    [86400, 'd'],
    [3600, 'h'],
    [60, 'min'],
    [1, 's'],
  ];
  const first = parts.findIndex(([length]) => seconds >= length);
  const [long, short] = [parts[first], parts[first + 1]];
  const [most, rest] = [Math.floor(seconds / long[0]), seconds % long[0]];
  const next = short ? Math.floor(rest / short[0]) : 0;
  return `${sign}${most} ${long[1]}${next ? ` ${next} ${short[1]}` : ''}`;
}

/** A time in UTC, to the minute; the year only where it is not `beside`'s. */
export function time(value, beside) {
  if (!value) return NONE;
  const text = new Date(value).toISOString();
  const isSameYear = beside && text.slice(0, 4) === new Date(beside).toISOString().slice(0, 4);
  return `${text.slice(isSameYear ? 5 : 0, 10)} ${text.slice(11, 16)}`;
}

/** A day in UTC. */
export const day = value => (value ? new Date(value).toISOString().slice(0, 10) : NONE);

/** GPUs from thousandths. */
export const gpus = milli => (milli === null || milli === undefined ? NONE : number(milli / 1000));

/** A name of the tables as words: idle_held is idle held. */
export const words = name => (name ?? '').toLowerCase().replaceAll('_', ' ');

/** What a job waits for, where the name of the constraint does not say it. */
const AWAITED = {
  behind_others: 'the jobs ahead of it',
  capacity_taken: 'enough free GPUs',
  fragmented: 'GPUs that are free together',
  gang: 'enough nodes at once',
  not_gpus: 'resources other than GPUs',
};

/** What a row of pending waits for; the scheduler's reason where no constraint is known. */
export const awaited = ({ constraint, reason }, unknown) =>
  AWAITED[constraint] ?? words(constraint ?? reason ?? unknown);

/** With a capital letter first. */
export const capital = text => text.charAt(0).toUpperCase() + text.slice(1);

/** A text or number as SQL has it. */
export const quoted = text => `'${String(text).replaceAll("'", "''")}'`;

/** How many of a thing, with its plural. */
export const many = (count, one) => `${number(count)} ${one}${count === 1 ? '' : 's'}`;
