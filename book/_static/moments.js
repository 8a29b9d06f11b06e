// The straight line through a block's inputs and outputs, and the share that it explains, from moments alone.
// Moments of n rows: { n, meanX, meanY, sxx, sxy, syy }, sums about the means; a matrix is a list of its rows.

// Moments of all rows together: what the distance of two means adds (Chan, Golub & LeVeque 1983).
function sum(parts) {
  const total = structuredClone(parts[0]);
  for (const part of parts.slice(1)) {
    const n = total.n + part.n;
    const weight = (total.n * part.n) / n;
    const dx = part.meanX.map((mean, i) => mean - total.meanX[i]);
    const dy = part.meanY.map((mean, j) => mean - total.meanY[j]);
    dx.forEach((d, i) => {
      for (let k = 0; k < dx.length; k++) total.sxx[i][k] += part.sxx[i][k] + weight * d * dx[k];
      for (let j = 0; j < dy.length; j++) total.sxy[i][j] += part.sxy[i][j] + weight * d * dy[j];
      total.meanX[i] += (d * part.n) / n;
    });
    dy.forEach((d, j) => {
      total.syy[j] += part.syy[j] + weight * d * d;
      total.meanY[j] += (d * part.n) / n;
    });
    total.n = n;
  }
  return total;
}

// Solves Lᵀ u = z, from the last row up, in place.
function backwards(lower, z) {
  for (let a = z.length - 1; a >= 0; a--) {
    for (let c = a + 1; c < z.length; c++) z[a] -= lower[c][a] * z[c];
    z[a] /= lower[a][a];
  }
  return z;
}

// Takes out of `vector`, in place, what it has of these directions, which are orthonormal.
function takeOut(directions, vector) {
  for (const direction of directions) {
    const share = direction.reduce((total, value, i) => total + value * vector[i], 0);
    direction.forEach((value, i) => (vector[i] -= share * value));
  }
  return vector;
}

// The least-squares map y ≈ x W + b. `ridge` makes every input's variance so much larger than it is; `inputs` are the
// places of those that the map may use, by default all. `rank` is in how many directions these vary.
function fit(moments, { ridge = 0, inputs = moments.meanX.map((_, i) => i) } = {}) {
  const { n, meanX, meanY, sxx, sxy } = moments;
  if (n < inputs.length + 2) throw new Error(`${n} rows for ${inputs.length} inputs: a line would fit them exactly`);
  const scale = sxx.map((row, i) => (row[i] > 0 ? 1 / Math.sqrt(row[i]) : 0));

  // Cholesky: D Sxx D + ridge = L Lᵀ. An input that those before it foretell to single precision is left out, and shows a
  // null direction: along it no two rows differ.
  const used = [];
  const lower = [];
  const nulls = [];
  for (const i of inputs) {
    const row = [];
    for (const [a, k] of used.entries()) {
      let rest = scale[i] * sxx[i][k] * scale[k];
      for (let c = 0; c < a; c++) rest -= row[c] * lower[a][c];
      row.push(rest / lower[a][a]);
    }
    if (!scale[i]) continue;
    const own = row.reduce((rest, value) => rest - value * value, 1 + ridge);
    if (own >= 1e-5) {
      used.push(i);
      lower.push([...row, Math.sqrt(own)]);
      continue;
    }
    const direction = meanX.map((_, k) => (k === i ? 1 : 0));
    backwards(lower, row).forEach((value, a) => (direction[used[a]] = -value));
    const length = Math.hypot(...takeOut(nulls, direction));
    nulls.push(direction.map((value) => value / length));
  }

  // L Lᵀ Z = D Sxy, forwards and backwards; W = D Z, with no slope along null directions
  const weight = meanX.map(() => new Float64Array(meanY.length));
  for (let j = 0; j < meanY.length; j++) {
    const z = used.map((i) => scale[i] * sxy[i][j]);
    for (let a = 0; a < z.length; a++) {
      for (let c = 0; c < a; c++) z[a] -= lower[a][c] * z[c];
      z[a] /= lower[a][a];
    }
    const slope = new Float64Array(meanX.length);
    backwards(lower, z).forEach((value, a) => (slope[used[a]] = value));
    takeOut(nulls, slope).forEach((value, i) => (weight[i][j] = scale[i] * value));
  }
  const bias = meanY.map((mean, j) => mean - meanX.reduce((total, x, i) => total + x * weight[i][j], 0));
  return { weight, bias, rank: used.length };
}

// The map to the mean output whatever the input: mean ablation.
function constant(moments) {
  const weight = moments.meanX.map(() => new Float64Array(moments.meanY.length));
  return { weight, bias: moments.meanY, rank: 0 };
}

// R²_lin: 1 − Σ (y − xW − b)² / Σ (y − ȳ)², both over all rows and outputs.
function r2(map, { n, meanX, meanY, sxx, sxy, syy }) {
  const { weight, bias } = map;
  let residual = 0;
  let total = 0;
  for (let j = 0; j < meanY.length; j++) {
    // Σ (y − xW − b)² = Syy − 2 Wᵀ Sxy + Wᵀ Sxx W + n (ȳ − x̄ W − b)²
    let offset = meanY[j] - bias[j];
    residual += syy[j];
    total += syy[j];
    for (let i = 0; i < meanX.length; i++) {
      let follows = 0;
      for (let k = 0; k < meanX.length; k++) follows += sxx[i][k] * weight[k][j];
      residual += weight[i][j] * (follows - 2 * sxy[i][j]);
      offset -= meanX[i] * weight[i][j];
    }
    residual += n * offset * offset;
  }
  return 1 - residual / total;
}

// Moments as the book stores them: n, means, Sxx up to its diagonal row by row, Sxy, Syy; float32 in base64.
function unpack(text, dIn, dOut) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const numbers = new Float32Array(bytes.buffer);
  let place = 0;
  const take = (count) => Array.from(numbers.subarray(place, (place += count)));
  const [n] = take(1);
  const [meanX, meanY] = [take(dIn), take(dOut)];
  const half = meanX.map((_, i) => take(i + 1));
  const sxx = half.map((_, i) => half.map((_, k) => (k <= i ? half[i][k] : half[k][i])));
  const sxy = meanX.map(() => take(dOut));
  return { n, meanX, meanY, sxx, sxy, syy: take(dOut) };
}
