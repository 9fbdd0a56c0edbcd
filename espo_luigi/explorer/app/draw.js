// Geometry and colours: the domain's places on the plane, and a map's values as paths, one for each colour.
"use strict";
(() => {
  const LARGE = 30000; // visible cells: from here on as pixels

  // Places of the index on a plane of `width` × `height`; `kind` is what the map's values belong to.
  espo.geometry = (index, width, height) => {
    const corners = index.grid && gridCorners(index.grid);
    const points = corners ? outline(corners) : index.stations.length
      ? index.stations.map(({ lon, lat }) => [lon, lat]) : index.regions.flatMap(({ lines }) => lines.flat());
    const centre = d3.geoCentroid({ type: "MultiPoint", coordinates: points });
    const reach = Math.max(0.01, ...points.map((point) => d3.geoDistance(centre, point)));
    const wide = reach > 1.4;
    const projection = wide
      ? d3.geoNaturalEarth1().rotate([corners ? -(corners.west + corners.east) / 2 : -centre[0], 0])
      : d3.geoAzimuthalEqualArea().rotate([-centre[0], -centre[1]]).clipAngle(Math.min(179, (reach * 180) / Math.PI * 1.6 + 2));
    const pad = Math.min(width, height) * 0.05;
    projection.fitExtent([[pad, pad], [width - pad, height - pad]], { type: "MultiPoint", coordinates: points });
    const path = d3.geoPath(projection).digits(2);
    const lines = (list) => path({ type: "MultiLineString", coordinates: list }) ?? "";
    const step = [30, 20, 10, 5, 2, 1, 0.5].find((one) => (reach * 180) / Math.PI > 2 * one) ?? 0.2;
    const graticule = path(d3.geoGraticule().step([step, step])());
    const geometry = { projection, graticule, width, height, lines, regions: index.regions.map((one) => lines(one.lines)) };
    if (corners) Object.assign(geometry, { kind: "cell", ...onPlane(corners, projection, wide) });
    else if (index.stations.length) geometry.kind = "station";
    else geometry.kind = "region";
    geometry.stations = index.stations.map(({ lon, lat }) => projection([lon, lat]));
    return geometry;
  };

  function gridCorners(grid) {
    const [ny, nx] = grid.shape;
    if (grid.lat_edges) {
      const { lat_edges: lats, lon_edges: lons } = grid;
      const lon = (place) => lons[place % (nx + 1)];
      return { ny, nx, lon, lat: (place) => lats[Math.floor(place / (nx + 1))], west: lons[0], east: lons[nx], regular: true };
    }
    const [lat, lon] = [espo.unpack(grid.corner_lat).at, espo.unpack(grid.corner_lon).at];
    return { ny, nx, lon, lat, west: lon(0), east: lon(nx) };
  }

  // Corners of the domain's edge; of a large grid, some.
  function outline({ ny, nx, lon, lat }) {
    const points = [];
    const step = Math.max(1, Math.floor(Math.max(ny, nx) / 100));
    const add = (place) => Number.isFinite(lon(place)) && Number.isFinite(lat(place)) && points.push([lon(place), lat(place)]);
    for (let j = 0; j <= ny; j += step) [0, nx].forEach((i) => add(j * (nx + 1) + i));
    for (let i = 0; i <= nx; i += step) [0, ny].forEach((j) => add(j * (nx + 1) + i));
    return points;
  }

  function onPlane({ ny, nx, lon, lat, west, east, regular }, projection, wide) {
    const size = (ny + 1) * (nx + 1);
    const [x, y] = [new Float32Array(size), new Float32Array(size)];
    const middle = (west + east) / 2;
    for (let place = 0; place < size; place++) {
      // The two edges of a whole circle are one meridian, and belong on two sides.
      const shown = wide && regular ? middle + Math.max(-179.999, Math.min(179.999, lon(place) - middle)) : lon(place);
      [x[place], y[place]] = projection([shown, lat(place)]) ?? [NaN, NaN];
    }
    const corner = (j, i) => [j * (nx + 1) + i, j * (nx + 1) + i + 1, (j + 1) * (nx + 1) + i + 1, (j + 1) * (nx + 1) + i];
    const north = y[corner(0, 0)[0]] < y[corner(ny - 1, 0)[3]] ? -1 : 1; // the step of j that goes up
    const middleOf = (j, i) => {
      const four = corner(j, i);
      const first = lon(four[0]);
      const east = d3.mean(four, (one) => ((lon(one) - first + 540) % 360) - 180);
      return [first + east, d3.mean(four, lat)];
    };
    return { ny, nx, x, y, corner, middleOf, north, east: x[0] < x[nx] ? 1 : -1 };
  }

  espo.centreOf = (geometry, j, i) => {
    const four = geometry.corner(j, i);
    const mean = (values) => four.reduce((sum, one) => sum + values[one], 0) / 4;
    return [mean(geometry.x), mean(geometry.y)];
  };

  espo.cellPath = (geometry, j, i) => {
    const points = geometry.corner(j, i).map((one) => `${geometry.x[one].toFixed(2)},${geometry.y[one].toFixed(2)}`);
    return `M${points.join("L")}Z`;
  };

  // The cell at a point of the plane, or null.
  espo.cellAt = ({ ny, nx, x, y, corner }, px, py) => {
    for (let j = 0; j < ny; j++) {
      for (let i = 0; i < nx; i++) {
        const four = corner(j, i);
        let inside = false;
        for (let one = 0, last = 3; one < 4; last = one++) {
          const [a, b] = [four[one], four[last]];
          if (y[a] > py !== y[b] > py && px < ((x[b] - x[a]) * (py - y[a])) / (y[b] - y[a]) + x[a]) inside = !inside;
        }
        if (inside) return [j, i];
      }
    }
    return null;
  };

  // By class, a path of the cells [within rows and columns] of the class: neighbours in a row are one polygon.
  espo.cellPaths = (geometry, classOf, count, [top, bottom, left, right] = [0, geometry.ny, 0, geometry.nx]) => {
    const { x, y, nx } = geometry;
    const parts = Array.from({ length: count }, () => []);
    const point = (place) => `${x[place].toFixed(2)},${y[place].toFixed(2)}`;
    for (let j = top; j < bottom; j++) {
      for (let i = left; i < right;) {
        const own = classOf[j * nx + i];
        const first = i;
        while (++i < right && classOf[j * nx + i] === own);
        if (own === 255) continue;
        const [above, below] = [j * (nx + 1), (j + 1) * (nx + 1)];
        const ring = [];
        for (let one = first; one <= i; one++) ring.push(point(above + one));
        for (let one = i; one >= first; one--) ring.push(point(below + one));
        parts[own].push(`M${ring.join("L")}Z`);
      }
    }
    return parts.map((one) => one.join(""));
  };

  // Rows and columns that may be visible in [x0, y0, x1, y1] of the plane.
  espo.visible = ({ ny, nx, x, y }, [x0, y0, x1, y1]) => {
    let [top, bottom, left, right] = [ny, 0, nx, 0];
    for (let j = 0; j <= ny; j++) {
      for (let i = 0; i <= nx; i++) {
        const place = j * (nx + 1) + i;
        if (x[place] < x0 || x[place] > x1 || y[place] < y0 || y[place] > y1) continue;
        [top, bottom] = [Math.min(top, j - 1), Math.max(bottom, j + 1)];
        [left, right] = [Math.min(left, i - 1), Math.max(right, i + 1)];
      }
    }
    return [Math.max(0, top), Math.min(ny, bottom), Math.max(0, left), Math.min(nx, right)];
  };
  espo.isLarge = ([top, bottom, left, right]) => (bottom - top) * (right - left) > LARGE;

  // Cells of a few pixels each: every pixel of a cell's box has its colour; hatches are lines of pixels.
  espo.paintPixels = (context, geometry, scene, { k, tx, ty }) => {
    const { width, height } = context.canvas;
    const image = context.createImageData(width, height);
    const pixels = new Uint32Array(image.data.buffer);
    const colour = scene.colours.map((hex) => {
      const [red, green, blue] = espo.rgb(hex);
      return 0xff000000 | (blue << 16) | (green << 8) | red;
    });
    const { ny, nx, x, y } = geometry;
    for (let j = 0; j < ny; j++) {
      for (let i = 0; i < nx; i++) {
        const own = scene.classes[j * nx + i];
        if (own === 255) continue;
        const [a, b] = [j * (nx + 1) + i, (j + 1) * (nx + 1) + i];
        const across = [x[a], x[a + 1], x[b], x[b + 1]].map((one) => one * k + tx);
        const down = [y[a], y[a + 1], y[b], y[b + 1]].map((one) => one * k + ty);
        const [x0, x1] = [Math.max(0, Math.floor(Math.min(...across))), Math.min(width, Math.ceil(Math.max(...across)))];
        const [y0, y1] = [Math.max(0, Math.floor(Math.min(...down))), Math.min(height, Math.ceil(Math.max(...down)))];
        const hatch = scene.hatches[j * nx + i];
        for (let row = y0; row < y1; row++) {
          for (let column = x0; column < x1; column++) {
            const lined = (hatch !== 255 && (row + column) % 10 === 0) || (hatch === 1 && (row - column + 10000) % 10 === 0);
            pixels[row * width + column] = lined ? 0xff303030 : colour[own];
          }
        }
      }
    }
    context.putImageData(image, 0, 0);
  };

  espo.rgb = (hex) => [1, 3, 5].map((start) => parseInt(hex.slice(start, start + 2), 16));

  // Classes between round numbers, each with the colour of its middle between `stops`.
  espo.scaleOf = ([low, high], stops) => {
    if (!(high > low)) [low, high] = [low - 0.5, low + 0.5];
    const edges = d3.ticks(low, high, 12);
    const bounds = edges.length > 2 ? edges : [low, (low + high) / 2, high];
    const colourAt = (share) => {
      const place = Math.max(0, Math.min(stops.length - 1, share * (stops.length - 1)));
      const [below, above] = [Math.floor(place), Math.ceil(place)].map((one) => espo.rgb(stops[one]));
      return `#${below.map((one, part) => Math.round(one + (above[part] - one) * (place % 1)).toString(16).padStart(2, "0")).join("")}`;
    };
    const step = bounds[1] - bounds[0];
    const colours = [bounds[0] - step, ...bounds].map((edge) => colourAt((edge + step / 2 - low) / (high - low)));
    return { bounds, colours, classOf: (value) => (Number.isNaN(value) ? 255 : d3.bisectRight(bounds, value)) };
  };
})();
